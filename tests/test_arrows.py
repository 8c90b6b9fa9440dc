"""Draws the arrows between rooms from the imports, lazy ones too, and holds them against DESIGN's floors."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "opforge"
FLOORS = {
    "core": 0, "device": 0,
    "definitions": 1,
    "registry": 2, "backends": 2, "machine": 2, "roofline": 2, "store": 2,
    "runner": 3, "report": 3,
    "verify": 4, "timing": 4, "inspect": 4, "diagnose": 4,
    "trial": 5,
    "workbench": 6, "tuning": 6, "dispatch": 6,
    "gate": 7, "forge": 7,
    "cli": 8, "ops": 8, "testing": 8,
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


def imports(path: Path) -> set[str]:
    """Every opforge module that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return {name for name in found if name.split(".")[0] == "opforge"}


def arrows() -> set[tuple[str, str, str]]:
    """(room, imported room, file) for every import between rooms."""
    found: set[tuple[str, str, str]] = set()
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).parts
        if len(parts) < 2 or (parts[0] == "ops" and len(parts) > 2):
            continue
        for name in imports(path):
            target = name.split(".")[1] if "." in name else ""
            if target in FLOORS and target != parts[0]:
                found.add((parts[0], target, str(path.relative_to(SOURCE))))
    return found


def test_every_room_has_a_floor():
    """A folder that the design does not know cannot hide an arrow."""
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert rooms <= set(FLOORS), f"rooms without a floor: {sorted(rooms - set(FLOORS))}"


def test_rooms_import_only_floors_below():
    """An upstairs import, or one to a neighbour, makes rooms that cannot be changed alone."""
    wrong = sorted(
        f"{path}: {room} (floor {FLOORS[room]}) imports {target} (floor {FLOORS[target]})"
        for room, target, path in arrows()
        if FLOORS[target] >= FLOORS[room]
    )
    assert not wrong, "\n".join(wrong)


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
    for path in (SOURCE / "ops").glob("*/*/op.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        for node in top:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            assert all(
                name.startswith(("opforge.core.", "opforge.definitions.")) or name in sys.stdlib_module_names
                for name in names
            ), f"{path} imports {names}"


def test_no_room_names_an_operator():
    """Rooms that know an operator by name would have to change when one is added."""
    operators = {path.parent.name for path in (SOURCE / "ops").glob("*/*/op.py")}
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0] in ("ops", "cli"):
            continue
        for name in imports(path):
            assert not (name.startswith("opforge.ops.") and name.split(".")[2] in operators), f"{path} imports {name}"


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
