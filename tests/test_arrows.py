"""Draws the arrows between rooms from the imports, lazy ones too, and holds them against DESIGN's floors."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "opforge"
FLOORS = {
    "core": 0, "primitives": 0,
    "registry": 1, "backends": 1, "machine": 1, "roofline": 1, "quant": 1, "store": 1,
    "runner": 2, "report": 2,
    "verdicts": 3, "timing": 3, "inspect": 3, "diagnose": 3, "dispatch": 3,
    "workbench": 4, "tuning": 4, "forge": 4, "gate": 4,
    "cli": 5, "serve": 5, "ops": 5, "testing": 5,
}  # fmt: skip
TOOLCHAINS = {"torch", "triton", "tilelang", "tvm_ffi", "sqlalchemy", "rich", "jinja2", "numpy", "matplotlib", "ray", "plotly"}


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
    wrong = sorted(f"{path}: {room} (floor {FLOORS[room]}) imports {target} (floor {FLOORS[target]})" for room, target, path in arrows() if FLOORS[target] >= FLOORS[room])
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
            # a package's front door imports its own modules; that is not a knot
            if target in modules and target != name and not name.startswith(f"{target}.") and target != "opforge":
                wanted.add(target)
        graph[name] = wanted
    state: dict[str, int] = {}

    def visit(name: str, trail: tuple[str, ...]) -> None:
        state[name] = 1
        for target in sorted(graph[name]):
            if state.get(target) == 1:
                pytest.fail("import cycle: " + " -> ".join((*trail[trail.index(target) if target in trail else 0 :], name, target)))
            if target not in state:
                visit(target, (*trail, name))
        state[name] = 2

    for name in sorted(graph):
        if name not in state:
            visit(name, ())


def test_operator_definitions_know_only_the_nouns():
    """op.py is read by every machine, with or without toolchains."""
    for path in (SOURCE / "ops").glob("*/op.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        for node in top:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            assert all(name.startswith("opforge.core") or name in sys.stdlib_module_names for name in names), f"{path} imports {names}"


def test_no_room_names_an_operator():
    """Rooms that know an operator by name would have to change when one is added."""
    operators = {path.parent.name for path in (SOURCE / "ops").glob("*/op.py")}
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0] in ("ops", "cli"):
            continue
        for name in imports(path):
            assert not (name.startswith("opforge.ops.") and name.split(".")[2] in operators), f"{path} imports {name}"


@pytest.mark.parametrize("arguments", [["-c", "import opforge"], ["-m", "opforge", "--help"], ["-m", "opforge", "list"]], ids=["import", "help", "list"])
def test_doors_open_without_toolchains(arguments):
    """Asking what is there must not cost seconds or need a compiler."""
    code = (
        "import sys, runpy; sys.argv = ['opforge', *sys.argv[1:]]\ntry:\n    %s\nexcept SystemExit:\n    pass\nprint('LOADED', *sorted(set(m.split('.')[0] for m in sys.modules)))"
    )
    run = "import opforge" if arguments[0] == "-c" else "runpy.run_module('opforge', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code % run, *arguments[2:]], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.rsplit("LOADED", 1)[1].split())
    # help is set by rich, through typer; nothing else may be there
    assert not loaded & (TOOLCHAINS - ({"rich"} if "--help" in arguments else set()))


def test_list_answers_at_once():
    """Best of five under 0.3 s of processor time: the machine may be busy, the command may not."""
    best = min(_cpu_seconds([sys.executable, "-m", "opforge", "list"]) for _ in range(5))
    assert best < 0.3


def _cpu_seconds(command: list[str]) -> float:
    import resource

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
