"""Discovery: homes, definitions, and what files say of themselves."""

import shutil
from pathlib import Path

import pytest

from opforge.core.errors import UsageError
from opforge.core.plugins import plugged
from opforge.forge import create
from opforge.registry import load

PACKAGE = Path(load().homes[0].path)


def test_the_ten_operators_are_there():
    wanted = {"vector_add", "relu", "gelu", "silu_mul", "bias_add", "softmax", "layernorm", "rmsnorm", "mean_var", "matmul"}
    registry = load()
    assert wanted <= set(registry.names())
    for name in wanted:
        found = {item.backend for item in registry.implementations(name)} - {"library"}
        assert found == {"torch", "compile", "triton", "cuda", "tilelang", "cpp"}, name
        operator = registry.operator(name)
        assert {"laptop", "gpu"} <= {workload.scale for workload in operator.workloads}
        assert all(case.why for case in operator.cases) and all(workload.source for workload in operator.workloads)
        assert (operator.folder / "README.md").is_file()


def test_an_unknown_operator_gets_a_suggestion():
    with pytest.raises(UsageError, match="Did you mean 'softmax'"):
        load().operator("sofmax")


def test_adding_an_operator_touches_one_new_folder(tmp_path):
    """A copy of the package's home plus one folder is all it takes; no existing file changes."""
    home = tmp_path / "more"
    before = {path: path.read_bytes() for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts and "built" not in path.parts}
    written = create(load(), "squares", home)
    registry = load([home])
    assert "squares" in registry.names()
    assert {path.parent for path in written} == {home / "squares"}
    assert {item.backend for item in registry.implementations("squares")} == {"torch", "compile", "triton", "cuda", "tilelang", "cpp"}
    after = {path: path.read_bytes() for path in before}
    assert before == after


def test_installed_plugins_bring_operators_and_backends(tmp_path, monkeypatch):
    """A package that names the two entry point groups is found by its metadata; one that names none costs no import."""
    create(load(), "squares", tmp_path / "my_operators")
    (tmp_path / "my_operators" / "__init__.py").write_text("")
    (tmp_path / "my_backend.py").write_text("class Mine:\n    name = 'mine'\n")
    metadata = tmp_path / "my_operators-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my_operators\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[opforge.operators]\nmine = my_operators\n[opforge.backends]\nmine = my_backend:Mine\n")
    assert "squares" not in load().names()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "squares" in load().names()
    assert {entry.name: entry.__name__ for entry in plugged("opforge.backends").values()} == {"mine": "Mine"}
    assert plugged("opforge.nothing") == {}


def test_one_name_twice_is_refused(tmp_path):
    shutil.copytree(PACKAGE / "softmax", tmp_path / "softmax")
    with pytest.raises(UsageError, match="defined twice"):
        load([tmp_path]).names()


def test_a_home_that_is_not_there_says_how_to_make_one(tmp_path):
    with pytest.raises(UsageError, match="opforge new"):
        load([tmp_path / "nowhere"])


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("torch_x.py", "SPACE = {'B': range(3)}\n", "must be a literal"),
        ("torch_x.py", "LAYOUTS = ('sideways',)\n", "outside"),
        ("torch_x.py", "SPACE = {'B': (1, 2)}\nDEFAULT = {'B': 3}\n", "not in its SPACE"),
        ("torch_x.py", "def run(:\n", "must parse"),
        ("cpp_x.cpp", "// idea\n/* opforge\nflags = 3\n*/", "FLAGS must be a tuple"),
        ("cpp_x.cpp", "// idea\n/* opforge\ncolour = 3\n*/", "unknown keys"),
        ("cpp_x.cpp", "// idea\n/* opforge\nflags = [\n*/", "not TOML"),
    ],
)
def test_malformed_statements_name_the_file(guest, name, text, words):
    """What a file says of itself is checked where it is read."""
    home = guest(eager="def run(x, bias):\n    return x + bias\n")
    folder = home / "guest_add"
    (folder / name).write_text(text)
    definition = (folder / "op.py").read_text().replace('"torch_eager",', f'"{name.split(".")[0]}",')
    (folder / "op.py").write_text(definition)
    with pytest.raises(UsageError, match=words):
        load([home]).implementations("guest_add")


def test_a_definition_that_raises_is_reported_with_its_file(guest):
    home = guest(eager="def run(x, bias):\n    return x + bias\n")
    (home / "guest_add" / "op.py").write_text("1 / 0\n")
    with pytest.raises(UsageError, match=r"op\.py cannot be loaded: ZeroDivisionError"):
        load([home]).operator("guest_add")
