"""The same bits each time: attention and its gradients, called again and again on more than one thread."""

import shutil

import pytest
import torch
from tests.named_kernels import Named

from opforge.dispatch import Function
from opforge.inspect import inspect_implementation
from opforge.registry import load

REGISTRY = load([])


@pytest.mark.parametrize(
    ("operator", "kernel", "times"),
    [
        ("attention", "cpp_blocked", 50),
        pytest.param("attention", "cpp_twokernels", 20, marks=pytest.mark.campaign),
        ("attention_backward", "torch_definition", 50),
        ("attention_varlen_backward", "torch_definition", 20),
    ],
)
def test_results_are_bit_equal_over_repeated_calls(operator, kernel, times, front_door):
    """No sum depends on who comes first: neither forward nor backward adds up by atomics."""
    definition = REGISTRY.operator(operator)
    function = Function(definition, Named(load(), kernel))
    make = torch.Generator().manual_seed(6)
    packed = "varlen" in operator
    rows, heads, shared = ((70,), (4,), (2,)) if packed else ((1, 4, 70), (), ())
    of_keys = (70,) if packed else (1, 2, 70)

    def drawn(*shape):
        return torch.randn(*shape, generator=make)

    q, k, v = drawn(*rows, *heads, 32), drawn(*of_keys, *shared, 32), drawn(*of_keys, *shared, 32)
    ends = [torch.tensor([0, 30, 30, 70], dtype=torch.int32)] * 2 if packed else []
    scalars = {"causal": True}
    if operator.endswith("_backward"):
        forward = REGISTRY.operator(operator.removesuffix("_backward"))
        wide = [tensor.double() for tensor in (q, k, v)]
        beside = [] if packed else [None] * 5
        out, lse = forward.reference(*wide, *ends, *beside, **forward.scalar_values(scalars))
        tensors = [q, k, v, out.float(), lse.float(), drawn(*out.shape), drawn(*lse.shape), *ends]
    else:
        tensors = [q, k, v, *ends]
    first = function(*tensors, **scalars)
    assert all(bool(tensor.isfinite().all()) for tensor in first)
    for _ in range(times):
        again = function(*tensors, **scalars)
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_of_hopper_s_gradients_the_ordered_ones_alone_promise_the_same_bits():
    """cuda_wgmma adds to dq by atomics in any order: verification must not hold it to what it does not promise."""
    items = {item.name: item for item in REGISTRY.implementations("attention_backward")}
    assert not items["cuda_wgmma"].deterministic and items["cuda_wgmma_ordered"].deterministic


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc to compile for a GPU")
@pytest.mark.offline
@pytest.mark.parametrize("name", ["cuda_wgmma", "cuda_wgmma_ordered"])
def test_hopper_s_gradients_multiply_while_they_compute_and_spill_nothing(name):
    """Registers are full to the last few: one value more, and ptxas makes every product wait for the one before, which
    is a silent loss of half the rate.
    """
    found = inspect_implementation(load(), "attention_backward", name, target="sm_90a", dtype="bfloat16")
    multiplying = [kernel for kernel in found.kernels if kernel.matrix_instructions.get("HGMMA", 0) > 0]
    # 64, 128, 192 and 256 dimensions, with and without what bends scores
    assert len(multiplying) == 8
    for kernel in found.kernels:
        assert not kernel.spills and kernel.warnings == ()
