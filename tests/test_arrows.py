"""Draws the arrows between rooms from the imports, lazy ones too, and holds them against DESIGN's floors."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "opforge"
FLOORS = {
    "core": 0, "device": 0, "walls": 0,
    "definitions": 1,
    "registry": 2, "backends": 2, "machine": 2, "roofline": 2, "store": 2,
    "runner": 3, "report": 3,
    "verify": 4, "timing": 4, "inspect": 4, "diagnose": 4,
    "trial": 5,
    "workbench": 6, "tuning": 6, "dispatch": 6,
    "gate": 7, "forge": 7, "ops": 7,
    "model": 8, "testing": 8,
    "cli": 9,
}  # fmt: skip
TOOLCHAINS = {
    "torch",
    "triton",
    "tilelang",
    "tvm_ffi",
    "sqlalchemy",
    "rich",
    "jinja2",
    "numpy",
    "matplotlib",
    "ray",
    "plotly",
}


DRAWERS = {
    "core": {"language": 0, "definition": 1, "evidence": 2},
    "runner": {"walls": 0, "wire": 1, "worker": 2, "parent": 3},
}
"""Folders of a room, each with its floor in that room. What lies beside them is the room's front."""

KERNELS_IMPORT = ("opforge.device", "opforge.core.philox")
"""What kernels may import of opforge: their hashes follow every import."""

DEFINITIONS_IMPORT = ("opforge.core", "opforge.definitions")
"""What an op.py may import of opforge."""

FRONT_DOOR = "the front door"
"""The package itself and the modules beside the rooms: they stand above everything."""


@cache
def imports(path: Path, source: Path = SOURCE) -> frozenset[str]:
    """Every opforge module that a file imports, anywhere in it, and what may be a module of those."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = ("opforge", *path.relative_to(source).parts)[: -node.level] if node.level else ()
            module = ".".join((*above, *(node.module.split(".") if node.module else ())))
            found |= {f"{module}.{alias.name}" for alias in node.names} | (set() if module == "opforge" else {module})
    return frozenset(name for name in found if name.split(".")[0] == "opforge")


def of(name: str, modules: tuple[str, ...]) -> bool:
    """Whether a module is one of these, or lies in one."""
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def arrows(source: Path = SOURCE) -> set[tuple[str, str, str]]:
    """(room, imported room or FRONT_DOOR, file) for every import between rooms."""
    found: set[tuple[str, str, str]] = set()
    for path in source.rglob("*.py"):
        parts = path.relative_to(source).parts
        if len(parts) < 2 or (parts[0] == "ops" and len(parts) > 2):
            continue
        for name in imports(path, source):
            target = next((room for room in name.split(".")[1:2] if room in FLOORS), FRONT_DOOR)
            if target != parts[0]:
                found.add((parts[0], target, str(path.relative_to(source))))
    return found


def wrong_arrows(source: Path = SOURCE) -> list[str]:
    """Imports of a room on the same floor or above."""
    return sorted(
        f"{path}: {room} (floor {FLOORS[room]}) imports {target}"
        + (f" (floor {FLOORS[target]})" if target in FLOORS else "")
        for room, target, path in arrows(source)
        if target == FRONT_DOOR or FLOORS[target] >= FLOORS[room]
    )


def wrong_drawers(source: Path = SOURCE) -> list[str]:
    """Imports of a drawer above, and of a room's front by its own drawers."""
    found = []
    for room, floors in DRAWERS.items():
        for path in (source / room).glob("*/**/*.py"):
            drawer = path.relative_to(source / room).parts[0]
            for name in imports(path, source):
                target = (*name.split("."), "", "")[2]
                if name.split(".")[1] == room and (target not in floors or floors[target] > floors[drawer]):
                    found.append(f"{path.relative_to(source)}: {drawer} imports {name}")
    return sorted(found)


def wrong_definitions(source: Path = SOURCE) -> list[str]:
    """What an op.py imports of opforge, anywhere in it, beside nouns and definitions, and of others when it is read."""
    found = []
    for path in (source / "ops").glob("*/*/op.py"):
        place = path.relative_to(source)
        found += [f"{place} imports {name}" for name in imports(path, source) if not of(name, DEFINITIONS_IMPORT)]
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            roots = {name.split(".")[0] for name in names} - {"opforge"}
            found += [f"{place} imports {root}" for root in roots if root not in sys.stdlib_module_names]
    return sorted(found)


def wrong_kernels(source: Path = SOURCE) -> list[str]:
    """What a kernel's file or shared device code imports beside shared device code."""
    beside = [path for path in (source / "ops").glob("*/*/*.py") if path.name != "op.py"]
    return sorted(
        f"{path.relative_to(source)} imports {name}"
        for path in (*beside, *(source / "device").rglob("*.py"))
        for name in imports(path, source)
        if not of(name, KERNELS_IMPORT)
    )


def named_operators(source: Path = SOURCE) -> list[str]:
    """Imports of an operator, of a family or of what lies in one, by any file of the package."""
    folders = [path.parent for path in (source / "ops").glob("*/*/op.py")]
    names = {folder.name for folder in folders} | {folder.parent.name for folder in folders}
    return sorted(
        f"{path.relative_to(source)} imports {name}"
        for path in source.rglob("*.py")
        for name in imports(path, source)
        if name.startswith("opforge.ops.") and name.split(".")[2] in names
    )


def test_every_room_has_a_floor():
    """A folder that the design does not know cannot hide an arrow, and a floor without a room guards nothing."""
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert rooms == set(FLOORS)
    for room, drawers in DRAWERS.items():
        assert {path.name for path in (SOURCE / room).iterdir() if (path / "__init__.py").exists()} == set(drawers)


def test_rooms_import_only_floors_below():
    """An upstairs import, or one to a neighbour, makes rooms that cannot be changed alone."""
    assert not wrong_arrows()


def test_drawers_import_only_drawers_below():
    """What a drawer imports of its own room lies in it or below: a worker knows nothing of the parent."""
    assert not wrong_drawers()


def test_modules_have_no_cycle():
    """Lazy imports count: a cycle that only shows at call time is still a knot."""
    graph: dict[str, set[str]] = {}
    modules = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        if parts[1:2] == ("ops",) and len(parts) > 3:
            continue
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = path
    for name, path in modules.items():
        wanted = set()
        for target in imports(path):
            while target not in modules and "." in target:
                target = target.rsplit(".", 1)[0]
            # a package's public API imports its own modules; that is not a knot
            if target in modules and target != name and not name.startswith(f"{target}.") and target != "opforge":
                wanted.add(target)
        graph[name] = wanted
    state: dict[str, int] = {}

    def visit(name: str, trail: tuple[str, ...]) -> None:
        state[name] = 1
        for target in sorted(graph[name]):
            if state.get(target) == 1:
                pytest.fail(
                    "import cycle: "
                    + " -> ".join((*trail[trail.index(target) if target in trail else 0 :], name, target))
                )
            if target not in state:
                visit(target, (*trail, name))
        state[name] = 2

    for name in sorted(graph):
        if name not in state:
            visit(name, ())


MOST_LINES, MOST_LINES_OF_KERNELS = 450, 650
KERNELS = ("ops", "device")


def test_no_module_is_too_long():
    """A module that is not read in one go is several."""
    long = []
    for path in (*SOURCE.rglob("*.py"), *(path for kind in ("h", "cu", "cpp") for path in SOURCE.rglob(f"*.{kind}"))):
        room = path.relative_to(SOURCE).parts[0]
        most = MOST_LINES_OF_KERNELS if room in KERNELS else MOST_LINES
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > most:
            long.append(f"{path.relative_to(SOURCE)}: {lines} lines, {most} allowed")
    assert not long, "\n".join(long)


LONGEST = 120
"""Columns of a line of Python, here and in pyproject.toml."""


def test_no_line_is_too_long():
    """What a formatter cannot break, people do: a string, a docstring, a comment."""
    root = SOURCE.parent.parent
    files = (
        path for folder in ("src", "tests", "scripts", "tools", "examples") for path in (root / folder).rglob("*.py")
    )
    long = [
        f"{path.relative_to(root)}:{number}: {len(line)} columns"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1)
        if len(line) > LONGEST
    ]
    assert not long, "\n".join(long)


def test_operator_definitions_know_only_nouns_and_definitions():
    """op.py is read by every machine, with or without toolchains."""
    assert not wrong_definitions()


def test_kernels_import_device_code_alone():
    """A kernel that imported a bound would be another kernel after every change to it, and its records stale."""
    assert not wrong_kernels()


def test_no_file_names_an_operator():
    """Rooms that know an operator or a family by name would have to change when one is added."""
    assert not named_operators()


KIND_OF_HOST = re.compile(r"isinstance\([^()]*,[^)]*\b(Isolated|InProcess)\b")


def test_a_host_is_asked_what_it_can_do():
    """Whoever asks which class a host is has to change when a host on another machine comes."""
    assert KIND_OF_HOST.search("if isinstance(host, (runner.Isolated, Other)):")
    wrong = [path for path in SOURCE.rglob("*.py") if KIND_OF_HOST.search(path.read_text(encoding="utf-8"))]
    assert not wrong


HOUSE = {
    "core/language/errors.py": "",
    "core/definition/operator.py": "from opforge.core.language.errors import UsageError",
    "core/evidence/verdict.py": "from opforge.core.definition import operator",
    "core/philox.py": "",
    "definitions/cases.py": "from opforge.core.operator import Case",
    "device/triton/rows.py": "import triton",
    "registry/discovery.py": "import opforge.core.operator",
    "backends/cache.py": "from opforge.core.language import errors",
    "runner/walls/guards.py": "",
    "runner/worker/launch.py": "from ..walls import guards",
    "runner/parent/host.py": "from opforge.runner.worker.launch import bind",
    "ops/functional.py": "from opforge import ops, registry",
    "ops/rows/softmax/op.py": "import math\nfrom opforge.core.operator import Case\nimport opforge.definitions.cases",
    "ops/rows/softmax/triton_online.py": "import torch\nfrom opforge.core.philox import words\nimport opforge.device",
}
"""A small house in order."""

GUARDS = (wrong_arrows, wrong_drawers, wrong_definitions, wrong_kernels, named_operators)
SOFTMAX = "ops/rows/softmax"


@pytest.mark.parametrize(
    ("guard", "file", "line"),
    [
        (wrong_arrows, "registry/discovery.py", "from opforge.runner import Host"),
        (wrong_arrows, "registry/discovery.py", "def f():\n    import opforge.runner.parent.host"),
        (wrong_arrows, "registry/discovery.py", "from opforge.backends.cache import path"),
        (wrong_arrows, "registry/discovery.py", "from opforge import backends"),
        (wrong_arrows, "registry/discovery.py", "from ..backends import cache"),
        (wrong_arrows, "registry/discovery.py", "from opforge import __version__"),
        (wrong_arrows, "registry/discovery.py", "def f():\n    import opforge"),
        (wrong_arrows, "registry/discovery.py", "from opforge.nn import RMSNorm"),
        (wrong_arrows, "core/philox.py", "from opforge.definitions.cases import row_layouts"),
        (wrong_drawers, "runner/walls/guards.py", "from opforge.runner.parent import host"),
        (wrong_drawers, "core/definition/operator.py", "from opforge.core.evidence.verdict import Pass"),
        (wrong_drawers, "runner/parent/host.py", "from opforge.runner import Worker"),
        (wrong_definitions, f"{SOFTMAX}/op.py", "from opforge.registry import load"),
        (wrong_definitions, f"{SOFTMAX}/op.py", "def f():\n    from opforge import device"),
        (wrong_definitions, f"{SOFTMAX}/op.py", "import torch"),
        (wrong_kernels, f"{SOFTMAX}/triton_online.py", "from opforge.definitions.bounds import sums"),
        (wrong_kernels, f"{SOFTMAX}/triton_online.py", "def f():\n    import opforge.definitions.cases"),
        (wrong_kernels, "device/triton/rows.py", "from opforge.core.language.units import plural"),
        (named_operators, "ops/functional.py", "from opforge.ops.rows.softmax.op import operator"),
        (named_operators, "ops/functional.py", "def f():\n    from opforge.ops import rows"),
        (named_operators, "ops/functional.py", "from opforge.ops import softmax"),
    ],
)
def test_a_planted_import_is_found(tmp_path, guard, file, line):
    """A guard that lets a wrong import pass guards nothing; one that finds more than it is of no help."""
    clean, planted = tmp_path / "clean", tmp_path / "planted"
    for name, text in HOUSE.items():
        for house in (clean, planted):
            (house / name).parent.mkdir(parents=True, exist_ok=True)
            (house / name).write_text(f"{text}\n{line}\n" if (house, name) == (planted, file) else text)
    assert [fault for one in GUARDS for fault in one(clean)] == []
    assert {fault.split()[0].rstrip(":") for fault in guard(planted)} == {file}


@pytest.mark.parametrize(
    "arguments",
    [["-c", "import opforge"], ["-m", "opforge", "--help"], ["-m", "opforge", "list"]],
    ids=["import", "help", "list"],
)
def test_doors_open_without_toolchains(arguments):
    """Asking what is there must not cost seconds or need a compiler."""
    code = (
        "import sys, runpy; sys.argv = ['opforge', *sys.argv[1:]]\ntry:\n    %s\nexcept SystemExit:\n    pass\n"
        "print('LOADED', *sorted(set(m.split('.')[0] for m in sys.modules)))"
    )
    run = "import opforge" if arguments[0] == "-c" else "runpy.run_module('opforge', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code % run, *arguments[2:]], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.rsplit("LOADED", 1)[1].split())
    # help is set by rich, through typer; nothing else may be there
    assert not loaded & (TOOLCHAINS - ({"rich"} if "--help" in arguments else set()))


def test_list_answers_at_once():
    """Best of five under 0.3 s of processor time, with Python's bytecode kept as it is by default: the machine may be
    busy, the command may not.
    """
    best = min(_cpu_seconds([sys.executable, "-m", "opforge", "list"]) for _ in range(5))
    assert best < 0.3


def _cpu_seconds(command: list[str]) -> float:
    import os
    import resource

    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def test_statements_of_native_files_have_one_key_a_line():
    """`space = {A = [1, 2], B = [3]}` grows to lines that no one reads: a table has a heading and a line a key."""
    root = Path(__file__).parents[1]
    tables = [
        f"{path.relative_to(root)}: {line:.60}"
        for suffix in ("cu", "cpp")
        for folder in ("src/opforge", "examples")
        for path in sorted((root / folder).rglob(f"*.{suffix}"))
        for block in re.findall(r"/\* opforge\n(.*?)\*/", path.read_text(encoding="utf-8"), re.DOTALL)
        for line in block.splitlines()
        if re.search(r"=\s*\{.*,", line)
    ]
    assert not tables, "\n".join(tables)
