"""The definitions of examples/definitions: each gives a folder that passes on every backend here, as it was written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.test_forge import failures

from opforge.cli.app import command_line
from opforge.core.language.errors import UsageError
from opforge.forge import files_of, from_formula, generate, read_definition
from opforge.forge.program.families import layout_of
from opforge.inspect import inspect_implementation
from opforge.registry import load

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "definitions"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
ASKED_IN_CI = ("running_share", "expert_groups", "drawdown")


def definition(name):
    return read_definition(FOLDER / f"{name}.yaml", name)


def family(name):
    program = definition(name).program()
    if any(value.scans for value in program.values):
        return "scans"
    layout = layout_of(program)
    return "batched products" if layout.family == "product" and len(layout.groups) > 2 else layout.family


def test_there_are_three_definitions_of_each_family_and_sixteen_at_the_least():
    counted = Counter(map(family, NAMES))
    assert set(counted) == {"elementwise", "rows", "product", "scans", "batched products"}
    assert min(counted.values()) >= 3 and sum(counted.values()) >= 16
    assert counted["rows"] >= 6, "reductions, and normalisations"
    assert "broadcast_bias" in NAMES
    assert sum("in no textbook" in definition(name).about for name in NAMES) >= 3


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.campaign if name in ASKED_IN_CI else pytest.mark.slow) for name in NAMES],
)
def test_the_folder_of_a_definition_passes_in_three_dtypes(name, tmp_path):
    """Odd sizes, sizes of 0, special values, other layouts: no file is changed by hand."""
    generate(load(), definition(name), tmp_path)
    dtypes = ["float32", "float16", "bfloat16"]
    assert failures(tmp_path, name, dtypes) == ({}, {"torch", "cpp", "triton"})
    cases = load((tmp_path,)).operator(name).cases
    assert any(0 in (size if isinstance(size, tuple) else (size,)) for case in cases for size in case.axes.values())


# --- backends on request ----------------------------------------

DTYPES = ("float32", "float16", "bfloat16")


def test_files_on_request_are_formatted_and_named_in_the_folder(tmp_path):
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or shutil.which("ruff")
    for name in NAMES:
        generate(load(), definition(name), tmp_path, backends=("cuda", "tilelang", "ascend", "ascendc"))
        backends = {item.backend for item in load((tmp_path,)).implementations(name)}
        assert {"cuda", "tilelang"} <= backends
        assert (tmp_path / name / f"{name}_ascend.py").is_file()
        asked = [
            path
            for kind in ("cuda_*", "tilelang_*", "*_ascend.py", "*_ascendc.py")
            for path in (tmp_path / name).glob(kind)
        ]
        assert len(asked) == 4
        for path in asked:
            assert max(map(len, path.read_text().splitlines())) <= 120, path
    # a growth of tiny steps is within rounding of 1, so that its differences tell nothing
    assert "tiny" not in {case.name for case in load((tmp_path,)).operator("compound_growth").cases}
    assert "Not asked: tiny." in (tmp_path / "compound_growth" / "README.md").read_text()
    if ruff is None:
        pytest.skip("no ruff here")
    for job in (["format", "--check"], ["check", "--select", "E,F,W,UP,B"]):
        words = [ruff, job[0], "--isolated", "--line-length", "120", *job[1:], str(tmp_path)]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:]


def test_what_a_kernel_calls_its_own_is_refused_as_a_name():
    for backend, text in (
        ("cuda", "y = vectors[*lead, cols] * 2"),
        ("tilelang", "y = partial[*lead, cols] * 2"),
        ("cuda", "y = cumsum(op[*lead, cols])"),
        ("tilelang", "y = left[*lead, k] @ b[k, n]"),
    ):
        with pytest.raises(UsageError, match="means something in"):
            files_of(from_formula("made", text), backends=(backend,))
    answer = CliRunner().invoke(command_line(["new"]), ["new", "made", "--formula", "y = x * 2", "--backend", "cudda"])
    assert isinstance(answer.exception, UsageError) and "cuda" in str(answer.exception)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.campaign if name == "score_gap" else pytest.mark.slow) for name in NAMES],
)
def test_cuda_passes_in_the_emulator_and_tilelang_on_its_c_target(name, tmp_path):
    generate(load(), definition(name), tmp_path, backends=("cuda", "tilelang"))
    found, asked = failures(tmp_path, name, DTYPES, ("cuda", "tilelang"))
    assert found == {}
    assert asked == {"cuda", "tilelang"}


@pytest.mark.campaign
@pytest.mark.parametrize(("name", "file"), [("drawdown", "cuda_scans"), ("expert_groups", "cuda_product")])
def test_scans_and_products_in_cuda_pass_in_the_emulator(name, file, tmp_path):
    """A scan that a reduction reads; several matrices of which one side lacks an axis: no tensor cores there."""
    generate(load(), definition(name), tmp_path, backends=("cuda",))
    assert file in {item.name for item in load((tmp_path,)).implementations(name)}
    assert failures(tmp_path, name, ("float32",), ("cuda",)) == ({}, {"cuda"})


@pytest.mark.offline
@pytest.mark.parametrize("name", ["channel_waves", "layer_scaled", "broadcast_bias", "drawdown", "expert_groups"])
def test_files_on_request_compile_for_a_gpu(name, tmp_path):
    generate(load(), definition(name), tmp_path, backends=("cuda", "tilelang"))
    for item in load((tmp_path,)).implementations(name):
        if item.backend in ("cuda", "tilelang"):
            assert inspect_implementation(load((tmp_path,)), name, item.name, target="sm_90a", dtype="float16").kernels


def test_the_file_for_an_npu_runs_where_there_is_a_triton(tmp_path):
    """Here that is the interpreter: the wrapper asks nothing of CUDA. It has not run on an NPU."""
    generate(load(), definition("tempered_softmax"), tmp_path, backends=("ascend",))
    code = (
        "import sys, torch; sys.path.insert(0, sys.argv[1])\n"
        "from tempered_softmax_ascend import DEVICE, tempered_softmax\n"
        "x, heat = torch.randn(2, 3, 37), torch.rand(2, 3)\n"
        "torch.testing.assert_close(tempered_softmax(x, heat), torch.softmax(x * heat[..., None], -1))\n"
        "assert tempered_softmax(x[:0], heat[:0]).shape == (0, 3, 37) and DEVICE == 'cpu'\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "tempered_softmax")]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stderr
