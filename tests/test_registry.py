"""Discovery: homes, definitions, and what files say of themselves."""

import shutil
from pathlib import Path

import pytest

from opforge.core.definition.implementation import Accepted
from opforge.core.language.errors import UsageError
from opforge.core.language.plugins import plugged
from opforge.forge import create
from opforge.registry import Home, Registry, load

PACKAGE = Path(load().homes[0].path)


def test_the_ten_operators_are_there():
    wanted = {
        "vector_add",
        "relu",
        "gelu",
        "silu_mul",
        "bias_add",
        "softmax",
        "layernorm",
        "rmsnorm",
        "mean_var",
        "matmul",
    }
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
    before = {
        path: path.read_bytes()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and "built" not in path.parts
    }
    written = create(load(), "squares", home)
    registry = load([home])
    assert "squares" in registry.names()
    assert {path.parent for path in written} == {home / "squares"}
    assert {item.backend for item in registry.implementations("squares")} == {
        "torch",
        "compile",
        "triton",
        "cuda",
        "tilelang",
        "cpp",
    }
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
    (metadata / "entry_points.txt").write_text(
        "[opforge.operators]\nmine = my_operators\n[opforge.backends]\nmine = my_backend:Mine\n"
    )
    assert "squares" not in load().names()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "squares" in load().names()
    assert {entry.name: entry.__name__ for entry in plugged("opforge.backends").values()} == {"mine": "Mine"}
    assert plugged("opforge.nothing") == {}


@pytest.mark.parametrize("name", ["größe", "name", "__init__", "class", "my-op", "A", ""])
def test_a_name_that_python_or_torch_cannot_take_is_refused(tmp_path, name):
    """Some of them verified, and failed as a function: torch.ops has no place for them."""
    with pytest.raises(UsageError, match="cannot name an operator"):
        create(load(), name, tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_folder_with_such_a_name_is_refused(tmp_path):
    create(load(), "squares", tmp_path)
    folder = (tmp_path / "squares").rename(tmp_path / "my-squares")
    (folder / "op.py").write_text((folder / "op.py").read_text().replace('"squares"', '"my-squares"'))
    with pytest.raises(UsageError, match=r"op\.py: 'my-squares' cannot name an operator"):
        load([tmp_path]).operator("my-squares")


@pytest.mark.parametrize(
    ("value", "words"),
    [("fileless_operators", None), ("not_there_at_all", "Plugin 'mine'.*ModuleNotFoundError.*Mend my_plugin")],
)
def test_a_plugin_without_a_file_is_found_and_a_broken_one_is_named(tmp_path, monkeypatch, value, words):
    """Either ended every verb in a trace that says nothing of plugins."""
    create(load(), "squares", tmp_path / "fileless_operators")
    metadata = tmp_path / "my_plugin-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my_plugin\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[opforge.operators]\nmine = {value}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    if words is None:
        assert "squares" in load().names()
    else:
        with pytest.raises(UsageError, match=words):
            load()


def test_an_operators_own_folder_is_no_home(tmp_path):
    """Nothing was found there, and nothing was said."""
    create(load(), "squares", tmp_path)
    with pytest.raises(UsageError, match=rf"name {tmp_path}$"):
        load([tmp_path / "squares"])


def test_one_name_twice_is_refused(tmp_path):
    shutil.copytree(PACKAGE / "rows" / "softmax", tmp_path / "softmax")
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
        ("torch_x.py", "SPACE: dict = {'B': (1, 2)}\nDEFAULT: dict = {'B': 3}\n", "not in its SPACE"),
        ("torch_x.py", "DEFAULT = {[]: 1}\n", "must be a literal"),
        ("torch_x.py", "DTYPES = ('flaot32',)\n", "no dtype"),
        ("torch_x.py", b"# gr\xf6\xdfe\n", "not UTF-8"),
        ("torch_x.py", b"x = 1\0\n", "must parse"),
        ("cpp_x.cpp", b"// gr\xf6\xdfe\n", "not UTF-8"),
    ],
)
def test_malformed_statements_name_the_file(guest, name, text, words):
    """What a file says of itself is checked where it is read."""
    home = guest(eager="def run(x, bias):\n    return x + bias\n")
    folder = home / "guest_add"
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    definition = (folder / "op.py").read_text().replace('"torch_eager",', f'"{name.split(".")[0]}",')
    (folder / "op.py").write_text(definition)
    with pytest.raises(UsageError, match=words):
        load([home]).implementations("guest_add")


@pytest.mark.parametrize(("text", "words"), [("1 / 0\n", "ZeroDivisionError"), ("raise SystemExit(0)\n", "SystemExit")])
def test_a_definition_that_raises_is_reported_with_its_file(guest, text, words):
    home = guest(eager="def run(x, bias):\n    return x + bias\n")
    (home / "guest_add" / "op.py").write_text(text)
    with pytest.raises(UsageError, match=rf"op\.py cannot be loaded: {words}"):
        load([home]).operator("guest_add")


@pytest.mark.parametrize(
    ("written", "instead", "words"),
    [
        (
            'laws=(Law(name="never_negative", about="squares", holds=never_negative),)',
            'laws=Law(name="never_negative", about="squares", holds=never_negative)',
            "tuple of Law",
        ),
        ('flops="prod(shape)"', 'flops="prod(shape)", dtypes=("float32")', "tuple of texts"),
        ('flops="prod(shape)"', 'flops="prod(shape)", dtypes=("flaot32",)', "Did you mean 'float32'"),
        ('flops="prod(shape)"', 'flops="prod(shape)", factors="dtype"', "Did you mean 'compute_dtype'"),
        ('flops="prod(shape)"', 'flops="prod(shpe)"', "uses 'shpe'"),
        (
            'flops="prod(shape)"',
            "flops=3",
            r"flops of Operator 'squares' must be a text, not 3 \(int\); write for example flops=",
        ),
        ('flops="prod(shape)"', "flops=\"'a'\"", "no number"),
        ("tolerance=Tolerance()", 'tolerance=Tolerance(length="colz")', "uses 'colz'"),
        ('shape="*shape"', 'shape="[rows, cols]"', "is no axis"),
        ('TensorSpec(name="x"', 'TensorSpec(name="class"', "cannot name a tensor"),
        ('TensorSpec(name="x"', 'TensorSpec(name="größe"', "cannot name a tensor"),
        ('axes={"shape": (1,)}', 'axes={"shap": (1,)}', "has the axes shap; it needs shape"),
        ('axes={"shape": (1,)}', 'axes={"shape": (1,), "cols": 3}', "has the axes shape, cols"),
        ('axes={"shape": (1,)}', 'axes={"shape": (-1,)}', "none below 0"),
        (
            'axes={"shape": (1024, 1024)}',
            'axes={"shape": [1024, 1024]}',
            "tuples of whole numbers, not {'shape': .1024, 1024.}",
        ),
        ('distribution="large"', 'distribution="large", dtype="float64"', "never be run"),
        ('distribution="large"', 'distribution="large", scalars={"eps": 3}', "has no parameter 'eps'"),
        ('scale="laptop"', 'scale="labtop"', "never be timed"),
        ('name="one"', 'name="empty"', "'empty' stands 2 times among its cases"),
        ('name="small"', 'name="large"', "'large' stands 2 times among its workloads"),
        ('"cpp_flat", "torch_eager"', '"cpp_flat", "cpp_flat"', "'cpp_flat' stands 2 times among its implementations"),
        (
            'flops="prod(shape)"',
            'flops="prod(shape)", scalars=(Scalar(name="shape", default=1),)',
            "something else in expressions",
        ),
        (
            'flops="prod(shape)"',
            'flops="prod(shape)", scalars=(Scalar(name="mode", default="plain"),)',
            "List its choices",
        ),
        (
            'flops="prod(shape)"',
            'flops="prod(shape)", scalars=(Scalar(name="mode", default=None),)',
            "default of Scalar 'mode' must be True or False or a number or a text, not None",
        ),
        (
            'flops="prod(shape)"',
            'flops="prod(shape)", scalars=(Scalar(name="mode", default="c", choices=("a", "b")),)',
            "by default is not one of",
        ),
    ],
)
def test_a_slip_in_a_definition_is_named_before_anything_is_done_with_it(tmp_path, written, instead, words):
    """Each of these was met later: as a trace, as a case that nobody ran, or as a history of two workloads in one."""
    create(load(), "squares", tmp_path)
    file = tmp_path / "squares" / "op.py"
    text = file.read_text()
    assert written in text
    file.write_text(text.replace(written, instead).replace("Operator, TensorSpec", "Operator, Scalar, TensorSpec"))
    with pytest.raises(UsageError, match=words) as raised:
        load([tmp_path]).operator("squares")
    assert str(raised.value).startswith(str(file))


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ('SPACES = {"BLOCK": (64,)}', r":3: SPACES says nothing.*SPACE\?"),
        ('SUPPORT = {"narrow": "cols <= 4"}', r":3: SUPPORT says nothing.*SUPPORTS\?"),
        ('SPACE = {"BLOCK": (64, 128)}\nDEFAULT = {"BLOCK": 256}', r":4: DEFAULT BLOCK = 256 is not in its SPACE"),
        (
            'SPACE = {"BLOCK": (64, 128)}\nDEFAULT = {"BLOK": 64, "BLOCK": 64}',
            r":4: DEFAULT has BLOK, and SPACE has not. Did you mean 'BLOCK'",
        ),
        ('SPACE = {"BLOCK": (64, 128), "warps": (4,)}\nDEFAULT = {"BLOCK": 64}', r":4: DEFAULT has no warps"),
        ('SPACE = {"BLOCK": ()}', r":3: SPACE BLOCK has no value"),
        ('LIMITS = ("cols <= 4",)', r":3: LIMITS must be a dict of names, not tuple"),
        ('LIMITS = {"narrow": 4}', r":3: LIMITS 'narrow' is 4, no condition"),
        ('LIMITS = {"narrow": "cols <"}', r":3: LIMITS 'narrow' = 'cols <' does not parse"),
        (
            'LIMITS = {\n    "narrow": "columns <= 4",\n}',
            r":4: LIMITS 'narrow' speaks of 'columns', which guest_add has not.*Known here: .*cols",
        ),
        (
            'SUPPORTS = {"narrow": "col <= 4"}',
            r":3: SUPPORTS 'narrow' speaks of 'col', which guest_add has not. Did you mean 'cols'",
        ),
        (
            'SUPPORTS = {"narrow": "BLOCK <= 4"}\nSPACE = {"BLOCK": (4,)}\nDEFAULT = {"BLOCK": 4}',
            r":3: SUPPORTS 'narrow' speaks of 'BLOCK'",
        ),
    ],
)
def test_what_a_file_says_of_itself_is_checked_when_it_is_read(guest, statement, words):
    """Each of these was accepted in silence: the statement said nothing, and the kernel was tried without it."""
    home = guest(tested=f'"""An idea."""\n\n{statement}\n\n\ndef run(x, bias):\n    return x + bias\n')
    with pytest.raises(UsageError, match=f"torch_tested.py{words}"):
        load([home]).implementations("guest_add")


def test_a_home_may_hold_families_and_names_stay_unique(tmp_path):
    """An operator is called by its name alone: two folders of one name are an error that names both."""
    for place in ("rows/squares", "cubes"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "op.py").write_text("")
    registry = Registry((Home(tmp_path, "option"),))
    assert registry.names() == ("cubes", "squares")
    assert (registry.family("squares"), registry.family("cubes")) == ("rows", "")
    # what lies in an operator's own folder is none, nor is what is hidden
    for place in ("cubes/old", ".kept/spheres", "norm/squares"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "op.py").write_text("")
    with pytest.raises(UsageError, match=r"norm.squares and .*rows.squares"):
        _ = Registry((Home(tmp_path, "option"),)).folders
    assert load([]).family("softmax") == "rows"


MINE = """\"\"\"Somebody's own.\"\"\"
SUPPORTS = {"narrow": "cols * itemsize <= 4096"}
def launch(x, y):
    raise NotImplementedError
"""


def test_a_file_in_a_home_of_ones_own_is_an_implementation_of_a_shipped_operator(tmp_path):
    """Without touching the package, and without being listed; a helper beside it is none."""
    folder = tmp_path / "softmax"
    folder.mkdir()
    (folder / "triton_mine.py").write_text(MINE)
    (folder / "triton_helpers.py").write_text("def cdiv(a, b): return -(-a // b)\n")
    registry = load([tmp_path])
    assert registry.implementation_names("softmax")[-1] == "triton_mine"
    mine = registry.implementation("softmax", "triton_mine")
    assert mine.source == folder / "triton_mine.py"
    # 1024 elements of 4 bytes, 2048 of 2
    for dtype, cols, taken in (("float32", 1024, True), ("float32", 2048, False), ("float16", 2048, True)):
        assert isinstance(mine.accepts({"lead": (2,), "cols": cols}, dtype, {}), Accepted) is taken
    assert "triton_mine" not in load([]).implementation_names("softmax")
    (folder / "torch_eager.py").write_text("def run(x): return x\n")
    with pytest.raises(UsageError, match=r"softmax has two files called torch_eager: in .* and in .*Rename"):
        load([tmp_path]).implementations("softmax")


def test_a_file_beside_op_py_is_found_by_its_name(tmp_path):
    """The README says that a kernel is a file beside the definition; op.py had to name it too."""
    folder = tmp_path / "squares"
    folder.mkdir()
    (folder / "op.py").write_text(
        "from opforge.core.operator import Case, Operator, TensorSpec, Tolerance, Workload\n"
        "operator = Operator(name='squares', about='x * x', inputs=(TensorSpec(name='x', shape='n'),),\n"
        "    outputs=(TensorSpec(name='y', shape='n'),), reference=lambda x: x * x, flops='n', tolerance=Tolerance(),\n"
        "    cases=(Case(name='odd', axes={'n': 7}, why='tail'),),\n"
        "    workloads=(Workload(name='w', axes={'n': 64}, source='a test', scale='laptop'),),\n"
        "    implementations=('torch_eager',))\n"
    )
    (folder / "torch_eager.py").write_text("def run(x): return x * x\n")
    (folder / "triton_mine.py").write_text("def launch(x, y): pass\n")
    assert load([tmp_path]).implementation_names("squares") == ("torch_eager", "torch_compile", "triton_mine")
