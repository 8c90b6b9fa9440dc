"""Verification on a GPU: contracts of PyTorch functions, compute-sanitizer on kernels with a planted fault."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest
import torch

from contract_clauses import clauses
from opforge.core.definition.implementation import Config
from opforge.core.evidence.verdict import Broken, Mismatch, Pass
from opforge.registry import load
from opforge.runner import Isolated
from opforge.verify import CaseCache, verify
from opforge.verify.cases.hidden import EXACT
from opforge.verify.extra.sanitize import sanitized
from opforge.verify.judging.huge import STATEMENT, Huge

pytestmark = pytest.mark.gpu
PLANTED = Path(__file__).parent / "redteam" / "home_gpu"


@pytest.mark.parametrize("name", ["softmax", "vector_add"])
def test_operators_keep_their_contracts_on_a_gpu(name):
    """As their users call them: captured, on a stream of their own, compiled, under vmap."""
    found = clauses(name, dtypes=["float32", "bfloat16"], device="cuda")
    asked = [clause for clause in found.values() if clause.name != "second device" or torch.cuda.device_count() > 1]
    assert {clause.standing for clause in asked} == {"held"}, [clause for clause in asked if clause.standing != "held"]
    if torch.cuda.device_count() < 2:
        assert found["second device"].standing == "not here" and "two GPUs" in found["second device"].detail


@pytest.mark.skipif(
    shutil.which("compute-sanitizer") is None, reason="needs compute-sanitizer on PATH; it comes with the CUDA toolkit"
)
@pytest.mark.parametrize(
    ("name", "tool", "words"),
    [
        ("cuda_out_of_bounds", "memcheck", ("Invalid __global__", "twice", "thread (7,0,0)", "0x")),
        ("cuda_races", "racecheck", ("Race", "twice")),
        ("torch_honest", "memcheck", ()),
    ],
)
def test_the_sanitizer_finds_what_values_do_not_show(name, tool, words):
    """Right by every value, and still wrong: the finding names the kernel, the thread and the address."""
    registry = load([PLANTED])
    operator, implementation = registry.operator("rt_double"), registry.implementation("rt_double", name)
    with (
        Isolated() as host,
        closing(CaseCache(registry=registry, operator=operator, host=host, device="cuda")) as bench,
    ):
        proof = verify(bench, implementation, "float32", effort=EXACT)
        assert isinstance(proof, Pass), proof
        verdict = sanitized(bench, implementation, "float32", tool, proof)
    if words:
        assert isinstance(verdict, Broken) and all(word in verdict.reason for word in words), verdict
    else:
        assert isinstance(verdict, Pass) and verdict.states(tool) is True, verdict


NARROW_INDEX = """
import triton
import triton.language as tl


@triton.jit
def twice(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    # the index is 32 bits wide, and what it addresses is not
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (i >= 0) & (i < n)
    tl.store(y_ptr + i, 2 * tl.load(x_ptr + i, mask=inside), mask=inside)


def launch(x, y):
    twice[(triton.cdiv(x.numel(), 4096),)](x, y, x.numel(), BLOCK=4096)
"""
FLAT = """
from opforge.core.operator import Case, Operator, TensorSpec, Tolerance

operator = Operator(
    name="twice", about="2 x", inputs=(TensorSpec(name="x", shape="*shape"),), outputs=(TensorSpec(name="y",
    shape="*shape"),), reference=lambda x: 2 * x,
    flops="prod(shape)", dtypes=("bfloat16",), tolerance=Tolerance(), cases=(Case(name="plain",
    axes={"shape": (5000,)}, why="plain"),),
    implementations=("triton_narrow", "torch_eager"),
)
"""


def test_an_index_of_32_bits_is_found_past_two_to_the_31(tmp_path):
    """Right in every small case; the verdict names the first elements that are wrong. PyTorch's own kernel is right
    there.
    """
    folder = tmp_path / "twice"
    folder.mkdir()
    for name, text in {
        "op": FLAT,
        "triton_narrow": NARROW_INDEX,
        "torch_eager": "def run(x):\n    return 2 * x\n",
    }.items():
        (folder / f"{name}.py").write_text(text)
    registry = load([tmp_path])
    operator = registry.operator("twice")
    with (
        Isolated() as host,
        closing(CaseCache(registry=registry, operator=operator, host=host, device="cuda")) as bench,
        closing(Huge(bench=bench, dtype="bfloat16")) as large,
    ):
        found = {}
        for name in ("torch_eager", "triton_narrow"):
            proof = verify(bench, registry.implementation("twice", name), "bfloat16", effort=EXACT)
            assert isinstance(proof, Pass), proof
            found[name] = large.judged(registry.implementation("twice", name), proof)
    right, wrong = found["torch_eager"], found["triton_narrow"]
    assert isinstance(right, Pass)
    if right.states(STATEMENT) is None:
        pytest.skip(right.statements[-1].detail)
    assert isinstance(wrong, Mismatch) and wrong.index[0] >= 1 << 31, wrong


@pytest.mark.skipif(
    shutil.which("compute-sanitizer") is None, reason="needs compute-sanitizer on PATH; it comes with the CUDA toolkit"
)
@pytest.mark.parametrize(
    ("name", "handover", "place"),
    [
        ("cuda_handover", 0, ""),
        ("cuda_handover", 2, "twice"),
        # the making itself races, which the tool names by the function that is inlined there
        ("cuda_handover", 3, "init_shared_barrier"),
        ("cuda_handover", 5, ""),
        ("cuda_handover", 6, ""),
        ("cuda_handover", 7, "twice"),
        ("triton_handover", 1, "twice"),
    ],
)
def test_racecheck_tells_a_race_from_the_order_that_kernels_here_keep(name, handover, place):
    """The ways in which kernels here pass shared memory on are clean; each of them without its barrier is found, also
    beside the hand-over of Triton's own that is not believed. (The files say what the numbers mean.)
    """
    registry = load([PLANTED])
    operator, implementation = registry.operator("rt_double"), registry.implementation("rt_double", name)
    with (
        Isolated() as host,
        closing(CaseCache(registry=registry, operator=operator, host=host, device="cuda")) as bench,
    ):
        # values may be right: nothing but the tool is asked here
        verdict = sanitized(
            bench,
            implementation,
            "float32",
            "racecheck",
            Pass(checked=(), not_taken=(), isolation=""),
            Config((("HANDOVER", handover),)),
        )
    if place:
        assert isinstance(verdict, Broken) and "Race reported" in verdict.reason and place in verdict.reason, verdict
    else:
        assert isinstance(verdict, Pass) and verdict.states("racecheck") is True, verdict
