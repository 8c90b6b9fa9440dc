"""The guides do what they say: the operator of docs/kernels.md is verified, the backend of examples/ is a plugin."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from opforge.backends import Call, Native, backend, backends
from opforge.cli.show import DECLARED
from opforge.core.definition.implementation import Implementation
from opforge.core.language.errors import UsageError
from opforge.registry import load
from opforge.registry.implementation_files import _KEYS

ROOT = Path(__file__).resolve().parent.parent
GUIDE = ROOT / "docs" / "kernels.md"
PLUGIN = ROOT / "examples" / "numpy_backend"
BLOCKS = '''"""A block of elements at a time."""

import numpy as np

DTYPES = ("float32",)
DEFAULT = {"BLOCK": 4}
SPACE = {"BLOCK": (4, 64)}


def run(x, weight, y, *, alpha, activation, BLOCK):
    for start in range(0, len(x), BLOCK):
        product = np.float32(alpha) * x[start : start + BLOCK] * weight
        y[start : start + BLOCK] = np.where(product < 0, 0, product) if activation == "relu" else product
'''


def write_examples(page: Path, folder: Path) -> list[str]:
    """Every code block of a page whose first line names a file, written to a folder."""
    blocks = re.findall(r"^```\w+ (\S+)\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    folder.mkdir(parents=True)
    for name, text in blocks:
        (folder / name).write_text(text, encoding="utf-8")
    return [name for name, _ in blocks]


@pytest.fixture
def guide(tmp_path):
    """A home with the operator of docs/kernels.md, and the names of its files."""
    return tmp_path / "home", write_examples(GUIDE, tmp_path / "home" / "row_scale")


def install(tmp_path: Path) -> Path:
    """The example as pip leaves it in site-packages: its module, and the entry points of its pyproject.toml."""
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    site = tmp_path / "site"
    metadata = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir(parents=True)
    (site / "opforge_numpy.py").write_bytes((PLUGIN / "opforge_numpy.py").read_bytes())
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    entries = [
        f"[{group}]\n" + "\n".join(f"{name} = {value}" for name, value in points.items())
        for group, points in project["entry-points"].items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(entries) + "\n")
    return site


def add_numpy_file(home: Path) -> None:
    """A kernel of the example's backend beside those of the guide."""
    (home / "row_scale" / "numpy_blocks.py").write_text(BLOCKS)
    definition = home / "row_scale" / "op.py"
    definition.write_text(definition.read_text().replace('"cpp_rows",', '"cpp_rows", "numpy_blocks",'))


def opforge(*words: str, site: Path | None = None) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(site or ""), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, "-m", "opforge", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def test_the_guides_files_are_read_and_its_baseline_computes(guide):
    """What the page shows is what opforge reads, and the definition agrees with the baseline."""
    home, names = guide
    registry = load([home])
    operator = registry.operator("row_scale")
    found = {item.name: item for item in registry.implementations("row_scale")}
    assert {Path(name).stem for name in names} - {"op"} <= set(found) and len(names) == 6
    assert found["cuda_flat"].default.as_dict() == {"THREADS": 256} and found["cpp_rows"].layouts == (
        "contiguous",
        "rows",
    )
    spec = importlib.util.spec_from_file_location("guide_eager", found["torch_eager"].source)
    eager = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(eager)
    x, weight = torch.randn(3, 5, 7, dtype=torch.float64), torch.randn(7, dtype=torch.float64)
    for activation in ("none", "relu"):
        expected = operator.reference(x, weight, alpha=-0.5, activation=activation)
        assert torch.equal(eager.run(x, weight, -0.5, activation), expected)


def test_the_guides_cpp_kernel_computes(guide):
    """TensorView, the dispatch macro, parallel_for and a parameter in words, as the page writes them."""
    home, _ = guide
    registry = load([home])
    operator, implementation = registry.operator("row_scale"), registry.implementation("row_scale", "cpp_rows")
    mode = backend("cpp").execution_mode("cpu")
    if not isinstance(mode, Native):
        pytest.skip(str(mode))
    for dtype in (torch.float32, torch.bfloat16):
        x, weight = torch.randn(9, 40, dtype=dtype)[:, :33], torch.randn(33, dtype=dtype)
        y = torch.full((9, 33), torch.nan, dtype=dtype)
        scalars = {"alpha": 2.0, "activation": "relu"}
        call = Call(
            operator=operator,
            axes={"lead": (9,), "cols": 33},
            dtype=str(dtype).removeprefix("torch."),
            scalars=scalars,
            config=implementation.default,
            device="cpu",
        )
        backend("cpp").prepare(implementation, call).run([x, weight], [y], scalars)
        expected = operator.reference(x.double(), weight.double(), **scalars)
        # rounded once to its dtype, after two products in float32
        torch.testing.assert_close(y.double(), expected, rtol=torch.finfo(dtype).eps / 2 + 2**-22, atol=0)


def examples_of_testing() -> list[str]:
    """The code blocks of docs/testing.md."""
    text = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def test_the_page_on_testing_shows_what_pytest_takes(guide, monkeypatch):
    """A test for each implementation, by the decorator that the page shows."""
    home, _ = guide
    monkeypatch.chdir(home.parent)
    made: dict = {}
    exec(examples_of_testing()[0].replace('"my_ops"', '"home"'), made)
    (mark,) = made["test_row_scale"].pytestmark
    assert [str(situation) for situation in mark.args[1]] == [
        f"row_scale-{name}-float32" for name in ("cuda_flat", "triton_rows", "tilelang_flat", "cpp_rows", "torch_eager")
    ]


@pytest.mark.campaign
def test_the_page_on_testing_shows_a_check_of_any_function():
    """It holds for the right function, and says of another what is broken."""
    made: dict = {}
    text = examples_of_testing()[1].replace(").require()", ', compiler="eager").require()')
    exec(text.replace("torch.ops.mine.gelu", "torch.nn.functional.gelu"), made)
    made["test_my_op"]()
    exec(text.replace("torch.ops.mine.gelu", "torch.nn.functional.relu"), made)
    with pytest.raises(AssertionError, match="broken  values"):
        made["test_my_op"]()


@pytest.mark.parametrize(
    "effort", [pytest.param(("--quick",), marks=pytest.mark.campaign), pytest.param((), marks=pytest.mark.slow)]
)
def test_every_kernel_of_the_guide_passes(guide, effort):
    """All backends, on all cases, hidden ones too: Triton interpreted, CUDA emulated, TileLang through its C target."""
    home, names = guide
    done = opforge("--home", str(home), "verify", "row_scale", "--dtype", "float32", "--json", *effort)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in {Path(name).stem for name in names} - {"op"}:
        assert f'"{name}"' in done.stdout


def test_the_guide_names_every_declaration_and_show_prints_them(tmp_path, guide):
    """A declaration that is in no page is found by nobody."""
    assert [key for key in _KEYS if f"`{key} = " not in GUIDE.read_text(encoding="utf-8")] == []
    assert set(Implementation.__dataclass_fields__) <= set(DECLARED) | {
        "name", "operator", "backend", "source", "idea", "default"
    }  # fmt: skip
    home, _ = guide
    kernel = home / "row_scale" / "triton_rows.py"
    everything = (
        'DTYPES = ("float32",)\nSUPPORTS = {"narrow": "cols <= 512"}\nLAYOUTS = ("contiguous", "rows")\n'
        'ANY_RANK = False\nLIMITS = {"small": "BLOCK <= 512"}\nBEST = {"wide": "cols >= 256"}\n'
        'FLAGS = ("-ffast-math",)\n'
        'ARCH = "sm_90a"\nDETERMINISTIC = False\nNEEDS = "some-package==1.0"\n'
    )
    kernel.write_text(kernel.read_text().replace("\n\n@triton.jit", f"\n{everything}\n\n@triton.jit"))
    shown = opforge("--home", str(home), "show", "row_scale").stdout
    part = shown[shown.index("triton_rows") : shown.index("tilelang_flat")]
    for words in (
        "float32", "narrow: cols <= 512", "contiguous, rows", "small: BLOCK <= 512", "wide: cols >= 256",
        "-ffast-math", "sm_90a", "not deterministic", "some-package==1.0", "BLOCK in 128, 256", "BLOCK=256",
    ):  # fmt: skip
        assert words in part, words
    for words in ("activation = 'none' of", "FLOP on vector units", "alpha=-0.5", "special contiguous"):
        assert words in shown, words


def test_the_example_backend_is_a_plugin(tmp_path, guide, monkeypatch):
    """Installed, its files are read, prepared and run; not installed, the name is refused with those that are known."""
    home, _ = guide
    add_numpy_file(home)
    with pytest.raises(UsageError, match=r"numpy_blocks.*begins with its backend"):
        load([home]).implementations("row_scale")
    monkeypatch.syspath_prepend(str(install(tmp_path)))
    backends.cache_clear()
    try:
        registry = load([home])
        implementation = registry.implementation("row_scale", "numpy_blocks")
        numpy = backend("numpy")
        assert implementation.backend == "numpy" and isinstance(numpy.execution_mode("cpu"), Native)
        assert "CPU" in str(numpy.execution_mode("cuda")) and numpy.capabilities()[0].available
        x, weight, y = torch.randn(9, 5), torch.randn(5), torch.full((9, 5), torch.nan)
        scalars = {"alpha": 2.0, "activation": "none"}
        call = Call(
            operator=registry.operator("row_scale"),
            axes={"lead": (9,), "cols": 5},
            dtype="float32",
            scalars=scalars,
            config=implementation.default,
            device="cpu",
        )
        numpy.prepare(implementation, call).run([x, weight], [y], scalars)
        torch.testing.assert_close(y, 2 * x * weight)
        with pytest.raises(UsageError, match="not compiled"):
            numpy.compile_offline(implementation, call, "sm_90a", tmp_path)
    finally:
        backends.cache_clear()


@pytest.mark.slow
def test_the_example_backend_is_verified_and_timed(tmp_path, guide):
    """Through the verbs, in processes of its own, as a user has it."""
    home, _ = guide
    add_numpy_file(home)
    site = install(tmp_path)
    words = ("row_scale", "--dtype", "float32", "--backend", "numpy", "--json")
    done = opforge("--home", str(home), "verify", *words, site=site)
    assert done.returncode == 0, done.stdout + done.stderr
    done = opforge(
        "--home", str(home), "bench", *words, "--workload", "laptop", "--budget", "0.1",
        "--report", str(tmp_path / "report"), site=site,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert any(record["timing"] for record in json.loads(done.stdout)), done.stdout


@pytest.mark.parametrize("name", ["basic_gemm", "jit_example"])
def test_the_short_examples_compute_what_they_say(name):
    if name == "jit_example" and shutil.which("g++") is None:
        pytest.skip("it compiles: apt-get install g++")
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    if name == "basic_gemm":
        assert example.main(5, 7, 33) < 1e-5
    else:
        assert torch.equal(example.main(), torch.arange(8.0) ** 2)
