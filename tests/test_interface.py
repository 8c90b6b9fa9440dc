"""Files of a folder that agree or don't, and what kind of change a folder went through: read by AST, never run."""

from __future__ import annotations

import re
import subprocess

import pytest
from typer.testing import CliRunner

from opforge.cli.app import command_line
from opforge.core.language.errors import UsageError
from opforge.forge import files_of, from_formula, generate
from opforge.forge.changes import classify, ensure_claimed
from opforge.forge.interface import check_files, check_folder
from opforge.registry import load
from opforge.registry.discovery import PACKAGE_HOME

FORMULAS = {
    "gated": ("out = silu(x[*lead, cols] * s[cols]) * a", {"a": 0.5}),
    "fused": ("c = relu(p[*lead, k] @ q[k, n] + bias[n])", {}),
    "norm": ("y = x[*lead, cols] * rsqrt(mean(square(x)) + eps) * w[cols]", {"eps": 1e-5}),
}
# the seed's files, with the mistakes that they have
KERNEL = """import torch, triton
import triton.language as tl
@triton.jit
def broadcast_v1(x_ptr, bias_ptr, out_ptr, P, D, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    pid = tl.program_id(axis=0)
    tl.store(out_ptr + pid, tl.load(bias_ptr + pid))

def broadcast_v1(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    assert x.is_npu and bias.is_npu, "x and bias must be NPU tensors"
    out = torch.empty_like(x)
    BLOCK_N = 512
    BLOCK_M = 32
    broadcast_v1[(1,)](x, bias, out, 1, 1, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=4, num_stages=3)
    return out
"""
BASELINE = """import torch
def broadcast_v1(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    assert x.is_npu and bias.is_npu, "x and bias must be NPU tensors"
    return x + bias
"""
ACCURACY = """import torch
from broadcast_v1_triton import broadcast_v1
from broadcast_v1_baseline import broadcast_v1 as broadcast_v1_baseline
def test_accuracy():
    x, bias = torch.randn(4, 4).npu(), torch.randn(4).npu()
    assert torch.allclose(broadcast_v1(x, bias), broadcast_v1_baseline(x, bias))
"""
SEED = {
    "broadcast_v1_triton.py": KERNEL,
    "broadcast_v1_baseline.py": BASELINE,
    "broadcast_v1_accuracy.py": ACCURACY,
}


def made(name):
    """The sources of a generated folder."""
    return {file: text for file, text in files_of(from_formula(name, *FORMULAS[name])).items() if "." in file}


@pytest.mark.parametrize("name", FORMULAS)
def test_generated_files_agree(name):
    assert check_files(made(name), name) == []


def test_the_packages_own_operators_agree():
    """The check is checked: forty folders that people wrote, with optional inputs and unnamed arguments."""
    folders = sorted({path.parent for path in PACKAGE_HOME.rglob("op.py")})
    assert len(folders) > 30
    assert {folder.name: found for folder in folders if (found := check_folder(folder))} == {}


def test_the_seeds_wrapper_that_takes_its_kernels_name_is_found():
    found = check_files(SEED, "broadcast")
    assert [(one.file, one.line) for one in found] == [("broadcast_v1_triton.py", 8)]
    assert "defined twice" in found[0].what


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("gated_triton.py", "s: torch.Tensor, a: float = 0.5", "s: torch.Tensor", "2 arguments, op.py has 3"),
        ("gated_baseline.py", "a: float = 0.5", "a: float = 0.25", "a has default 0.25, op.py 0.5"),
        ("gated_baseline.py", "x: torch.Tensor, s:", "s: torch.Tensor, x:", "op.py has x, s, a"),
        ("gated_triton.py", "s: torch.Tensor", "s: float", "s is a float, in op.py a tensor"),
        ("gated_triton.py", "-> torch.Tensor:", "-> tuple[torch.Tensor, torch.Tensor]:", "op.py has 1 outputs"),
        ("gated_triton.py", "def gated(", "def gate(", "there is no function gated"),
        ("gated_baseline.py", 'assert s.device == x.device, "s is on another device than x"', "", "stands in"),
        ("torch_eager.py", "def run(x: Tensor, s", "def run(s: Tensor, x", "called with x, s, a"),
        ("triton_tiles.py", "def launch(x, s, out", "def launch(x, out, s", "called with x, s, out, a"),
        ("cpp_rows.cpp", "void gated(opforge::TensorView x, opforge::TensorView s", "void gated(opforge::TensorView s, "
         "opforge::TensorView x", "called with x, s, out, a"),
        ("gated_accuracy.py", "import gated_triton", "import gate_triton", "gate_triton.py is imported"),
        ("op.py", 'name="s"', 'name="scale"', "op.py has x, scale, a"),
    ],
)  # fmt: skip
def test_what_disagrees_is_found_where_it_stands(file, old, new, words):
    files = made("gated")
    assert old in files[file], files[file]
    found = check_files({**files, file: files[file].replace(old, new)}, "gated")
    assert any(words in one.what for one in found), found
    assert all(one.fix and one.line >= 1 for one in found)


def test_a_name_of_its_own_is_no_disagreement():
    """C++ tells arguments by their places: `input` for x was called wrong. A tensor where a number comes is."""
    files = made("gated")
    renamed = re.sub(r"\bx\b", "input", files["cpp_rows.cpp"])
    assert "TensorView input" in renamed and check_files({**files, "cpp_rows.cpp": renamed}, "gated") == []
    swapped = re.sub(r"void gated\([^)]*\)", "void gated(opforge::TensorView p, double a, opforge::TensorView r, "
                     "opforge::TensorView q)", files["cpp_rows.cpp"])  # fmt: skip
    assert [one.file for one in check_files({**files, "cpp_rows.cpp": swapped}, "gated")] == ["cpp_rows.cpp"]


def test_calls_and_devices_of_the_seeds_tests_are_compared():
    good = {**SEED, "broadcast_v1_triton.py": KERNEL.replace("def broadcast_v1(x_ptr", "def broadcast_kernel(x_ptr")}
    assert check_files(good, "x") == []
    for old, new, words in (
        ("broadcast_v1(x, bias),", "broadcast_v1(x),", "called with 1 arguments"),
        (".npu()", ".cuda()", "put on cuda"),
        ("import broadcast_v1\n", "import broadcast_v2\n", "has no broadcast_v2"),
    ):
        found = check_files({**good, "broadcast_v1_accuracy.py": ACCURACY.replace(old, new)}, "x")
        assert any(words in one.what for one in found), (words, found)


# --- kinds of change ----------------------------------------


@pytest.mark.parametrize(
    ("file", "old", "new", "kinds"),
    [
        ("broadcast_v1_triton.py", "BLOCK_N = 512", "BLOCK_N = 256", ("parameters",)),
        ("broadcast_v1_triton.py", "num_warps=4, num_stages=3", "num_warps=8, num_stages=2", ("parameters",)),
        ("broadcast_v1_triton.py", "pid = tl", "# a comment\n    pid = tl", ()),
        ("broadcast_v1_triton.py", "bias: torch.Tensor)", "bias: torch.Tensor, a: float = 1.0)", ("interface",)),
        ("broadcast_v1_triton.py", "tl.load(bias_ptr + pid)", "tl.load(x_ptr + pid)", ("logic",)),
        ("broadcast_v1_triton.py", "axis=0", "axis=1", ("logic",)),
        ("broadcast_v1_triton.py", "BLOCK_N = 512", "BLOCK_N = len(bias)", ("logic",)),
        ("broadcast_v1_baseline.py", "x + bias", "x - bias", ("logic",)),
    ],
)
def test_changes_of_the_seeds_files_have_their_kind(file, old, new, kinds):
    assert old in SEED[file]
    change = classify(SEED, {**SEED, file: SEED[file].replace(old, new)})
    assert change.kinds == kinds
    everything = "interface" in kinds or (file.endswith("baseline.py") and kinds)
    assert change.left_out == (tuple(sorted(set(SEED) - {file})) if everything else ())


@pytest.mark.parametrize(
    ("file", "old", "new", "kinds"),
    [
        ("triton_tiles.py", '"TILE": 4096', '"TILE": 2048', ("parameters",)),
        ("triton_tiles.py", "tl.sigmoid", "tl.exp", ("logic",)),
        ("op.py", 'name="s"', 'name="t"', ("interface",)),
        ("op.py", "sigmoid()", "tanh()", ("logic",)),
        ("op.py", "odd sizes elsewhere", "odd sizes", ("logic",)),
        ("cpp_rows.cpp", "opforge::logistic", "opforge::tanh", ("logic",)),
        ("cpp_rows.cpp", "void gated(opforge::TensorView x", "void gated(opforge::TensorView y", ("interface",)),
        ("cpp_rows.cpp", "// Rows along", "// Columns along", ()),
    ],
)
def test_changes_of_generated_files_have_their_kind(file, old, new, kinds):
    files = made("gated")
    assert old in files[file], files[file]
    assert classify(files, {**files, file: files[file].replace(old, new)}).kinds == kinds


def test_a_claim_that_is_too_small_is_refused():
    wider = {**SEED, "broadcast_v1_triton.py": KERNEL.replace("x_ptr, bias_ptr, out", "a_ptr, b_ptr, out")}
    tuned = {**SEED, "broadcast_v1_triton.py": KERNEL.replace("BLOCK_N = 512", "BLOCK_N = 64")}
    with pytest.raises(UsageError, match="changed the logic"):
        ensure_claimed(classify(SEED, wider), ["parameters"])
    ensure_claimed(classify(SEED, wider), ["logic"])
    ensure_claimed(classify(SEED, tuned), ["parameters"])
    ensure_claimed(classify(SEED, tuned), ["logic"])
    with pytest.raises(UsageError, match="No kind of change"):
        ensure_claimed(classify(SEED, tuned), ["params"])


def test_the_command_checks_classifies_and_refuses(tmp_path):
    generate(load(), from_formula("gated", *FORMULAS["gated"]), tmp_path)
    folder = tmp_path / "gated"

    def ask(*words):
        return CliRunner().invoke(command_line(["check-interface"]), ["check-interface", str(folder), *words])

    assert (ask().exit_code, ask().stdout.strip()) == (0, "the files agree")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    kernel = folder / "triton_tiles.py"
    kernel.write_text(kernel.read_text().replace('"TILE": 4096', '"TILE": 2048'))
    answer = ask("--against", "HEAD", "--claims", "parameters")
    assert answer.exit_code == 0, answer.output
    assert "change since HEAD: parameters\n  triton_tiles.py: parameters" in answer.stdout
    kernel.write_text(kernel.read_text().replace("tl.sigmoid", "tl.exp"))
    refused = ask("--against", "HEAD", "--claims", "parameters")
    assert isinstance(refused.exception, UsageError)
    assert "triton_tiles.py changed the logic" in str(refused.exception)
    assert isinstance(ask("--against", "nothing").exception, UsageError)
