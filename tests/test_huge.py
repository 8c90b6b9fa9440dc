"""More elements than an index of 32 bits can count, with a smaller number in its place: the same slices, the same
judge.
"""

from __future__ import annotations

from contextlib import closing

import pytest

from opforge.core.evidence.verdict import Broken, Crash, Mismatch, Pass
from opforge.registry import load
from opforge.runner import Isolated
from opforge.verify import CaseCache
from opforge.verify.judging import huge
from opforge.verify.judging.huge import Huge, NotHere, huge_case

PROOF = Pass(checked=(), not_taken=(), isolation="")
BEYOND = 100_000

DEFINITION = """
from opforge.core.operator import Case, Operator, TensorSpec

operator = Operator(
    name="scaled", about="2 x + bias", inputs=(TensorSpec(name="x", shape="*lead cols"), TensorSpec(name="bias",
    shape="cols")),
    outputs=(TensorSpec(name="y", shape="*lead cols"),), reference=lambda x, bias: 2 * x + bias,
    flops="2 * prod(lead) * cols",
    dtypes=("float32",), cases=(Case(name="plain", axes={"lead": (3,), "cols": 8}, why="plain"),),
    implementations=("torch_right", "torch_wraps", "torch_input", "torch_behind", "torch_dies"),
)
"""
SOURCES = {
    "torch_right": "def run(x, bias):\n    return 2 * x + bias\n",
    # an index that has run out: the elements from there on are those of the beginning
    "torch_wraps": "def run(x, bias):\n    y = 2 * x + bias\n    flat = y.view(-1)\n    flat[100_000:] = flat[: "
    "flat.numel() - 100_000].clone()\n    return y\n",
    "torch_input": "def run(x, bias):\n    y = 2 * x + bias\n    x.view(-1)[-1] = 0\n    return y\n",
    "torch_behind": "import torch\n\n\ndef run(x, bias):\n    torch.empty(0).set_(x.untyped_storage(), "
    "x.storage_offset() + x.numel(), (1,)).zero_()\n    return 2 * x + bias\n",
    "torch_dies": "import os\n\n\ndef run(x, bias):\n    os._exit(9)\n",
}


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """large(name): the verdict on one implementation, all sharing one huge case."""
    folder = tmp_path_factory.mktemp("home") / "scaled"
    folder.mkdir()
    for name, text in {"op": DEFINITION, **SOURCES}.items():
        (folder / f"{name}.py").write_text(text)
    registry = load([folder.parent])
    with (
        Isolated() as host,
        closing(CaseCache(registry=registry, operator=registry.operator("scaled"), host=host, device="cpu")) as bench,
        closing(Huge(bench=bench, dtype="float32", beyond=BEYOND, slice_elements=20_000)) as shared,
    ):
        yield lambda name: shared.judged(registry.implementation("scaled", name), PROOF)


def test_a_right_kernel_gets_a_statement_with_the_count(large):
    """Every element was judged, slice by slice."""
    verdict = large("torch_right")
    assert isinstance(verdict, Pass) and verdict.states(huge.STATEMENT) is True
    elements = int(verdict.statements[-1].detail.split()[0])
    assert elements > BEYOND and elements % 4099 == 0


def test_an_index_that_runs_out_is_placed_in_the_whole_case(large):
    """The index is that of the tensor, not of the slice in which it was found."""
    verdict = large("torch_wraps")
    assert isinstance(verdict, Mismatch)
    place = verdict.index[0] * 4099 + verdict.index[1]
    # the worst element of the first slice that is wrong: the slice that element 100 000 lies in
    assert BEYOND <= place < 120_000 and verdict.total > BEYOND and "wrong at element" in verdict.cause
    assert verdict.window is not None and verdict.window.corner[0] <= verdict.index[0] < verdict.window.corner[0] + 5


@pytest.mark.parametrize(
    ("name", "words"), [("torch_input", "input x was modified"), ("torch_behind", "past the end of x")]
)
def test_inputs_and_guards_are_looked_at(large, name, words):
    """The contract holds for large tensors too."""
    verdict = large(name)
    assert isinstance(verdict, Broken) and words in verdict.reason


def test_a_kernel_that_dies_costs_one_verdict(large):
    """The memory is the parent's, and serves the next one."""
    assert isinstance(large("torch_dies"), Crash)
    assert isinstance(large("torch_right"), Pass)


def test_without_room_nothing_is_asked(large, monkeypatch):
    """A machine that is too small says so in the record."""
    from opforge.machine import host_hardware

    monkeypatch.setattr(host_hardware, "available_bytes", lambda: 1000)
    monkeypatch.setattr(huge, "COLUMNS", (1024,))
    verdict = large("torch_right")
    assert (
        isinstance(verdict, Pass)
        and verdict.states(huge.STATEMENT) is None
        and "host memory" in verdict.statements[-1].detail
    )


def test_operators_whose_rows_hang_together_are_left_out():
    """A product of matrices has no slices of rows on both sides."""
    registry = load()
    with pytest.raises(NotHere, match="independent rows"):
        huge_case(registry.operator("matmul"), registry.implementations("matmul")[0], "float32")


@pytest.mark.parametrize(
    "name", ["vector_add", "relu", "softmax", "bias_add", "gelu", "silu_mul", "layernorm", "rmsnorm", "mean_var"]
)
def test_the_package_s_operators_have_a_case_past_two_to_the_31(name):
    """By definition of the case alone: nothing of that size is allocated here."""
    from opforge.verify.cases.hidden import elements

    registry = load()
    operator = registry.operator(name)
    case = huge_case(operator, registry.implementation(name, "torch_eager"), "bfloat16")
    assert 1 << 31 < elements(operator, case) < (1 << 31) * 1.01
