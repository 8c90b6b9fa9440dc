"""What a caller of `ops` and `get_kernel` is given, where the call is an odd one."""

import inspect
import os
import pydoc
import subprocess
import sys

import pytest
import torch

import opforge
from opforge import ops


def fp8(*shape):
    return torch.randn(*shape).to(torch.float8_e4m3fn)


def test_an_operator_says_how_it_is_called():
    """`inspect.signature`, `help` and editors read it from the definition."""
    signature = inspect.signature(ops.cross_entropy)
    assert list(signature.parameters) == ["x", "target", "ignore_index", "label_smoothing"]
    assert signature.parameters["ignore_index"].default == -100
    with pytest.raises(TypeError, match="missing a required argument: 'target'"):
        signature.bind(1)
    optional = inspect.signature(ops.attention).parameters["mask"]
    assert (optional.default, optional.kind) == (None, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    page = pydoc.plain(pydoc.render_doc(ops.cross_entropy))
    assert "target          [*lead] int64: the right class of each row" in page
    assert "Raises UsageError" in page


def paged(**how):
    """Two sequences of 3 and 4 keys in pages of 2."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(*shape, **how) for shape in ((2, 4, 1, 8), (4, 2, 2, 8), (4, 2, 2, 8)))
    table, lengths = torch.tensor([[0, 2], [1, 3]], dtype=torch.int32), torch.tensor([3, 4], dtype=torch.int32)
    return q, k, v, table, lengths


def test_a_gradient_that_reads_lengths_stands_in_a_compiled_graph():
    """The reference reads `lengths` on the host, which no trace can follow."""
    q, k, v, table, lengths = paged(requires_grad=True)

    def total(q, k):
        return ops.attention_decode(q, k, v, table, lengths, scale=0.3)[0].square().sum()

    eager = torch.autograd.grad(total(q, k), (q, k))
    compiled = torch.autograd.grad(torch.compile(total, backend="aot_eager", fullgraph=True)(q, k), (q, k))
    for one, other in zip(compiled, eager, strict=True):
        assert other.abs().max() > 0.01
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("compiled", [False, True])
def test_scales_of_fp8_have_a_gradient_and_fp8_has_none(compiled):
    """A result of FP8 tensors follows from their scales; a gradient in FP8 would say nothing."""
    a, b = fp8(4, 16), fp8(8, 16)
    scale, other = torch.rand(4, 1).requires_grad_(), torch.rand(8, 1)

    def product(a, scale):
        return ops.matmul_fp8(a, b, scale, other, out_dtype="float32")

    call = torch.compile(product, backend="aot_eager", fullgraph=True) if compiled else product
    y = call(a, scale)
    (gradient,) = torch.autograd.grad(y.sum(), scale)
    expected = ((a.float() @ b.float().t()) * other.t()).sum(dim=1, keepdim=True)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-4)
    if not compiled:
        assert not call(a.requires_grad_(), scale.detach()).requires_grad
        assert not call(a, scale.detach()).requires_grad  # kept from the first call
        x = torch.randn(4, 256, requires_grad=True)
        assert [result.requires_grad for result in ops.quantize_fp8(x)] == [False, False]


RAW = """
import torch
from opforge import get_kernel
loss = get_kernel("triton", "cross_entropy")(torch.zeros(3, 8), torch.tensor([1, 2, 3]))
print([round(one, 5) for one in loss.tolist()])
half = torch.ones(16, 16).half()
print(get_kernel("triton", "matmul")(half, half)[0, 0].item())
q = torch.ones(1, 1, 4, 16)
mask = torch.ones(1, 1, 4, 4, dtype=torch.bool)
print(get_kernel("triton", "attention")(q, q, q, mask=mask)[0][0, 0, 0, 0].item())
"""


def test_get_kernel_gives_what_runs_here():
    """Triton's own interpreter cannot loop with NumPy 2.4; matmul's first kernel is an H100's alone; a mask goes by its
    name, as `ops` takes it.
    """
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    ran = subprocess.run([sys.executable, "-c", RAW], capture_output=True, text=True, env=environment, check=True)
    assert ran.stdout.split("\n") == ["[2.07944, 2.07944, 2.07944]", "16.0", "1.0", ""]


def test_get_kernel_says_what_is_wrong_with_a_call():
    with pytest.raises(opforge.UsageError, match="no parameter 'maks'"):
        opforge.get_kernel("torch", "attention")(*[torch.ones(1, 1, 4, 8)] * 3, maks=None)
