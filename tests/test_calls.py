"""What a caller of `ops` and `get_kernel` is given, where the call is an odd one."""

import inspect
import os
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import opforge
from opforge import ops

ROOT = Path(__file__).resolve().parent.parent


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


@pytest.mark.parametrize("compiled", [False, True])
def test_an_index_that_no_class_has_gives_nan(compiled, front_door):
    """The definition says so, for every implementation: PyTorch's own raises on a CPU, and ends a GPU's process."""
    scores = torch.zeros(4, 7, requires_grad=True)
    target = torch.tensor([0, 7, -1, -100])

    def loss(scores):
        return front_door.cross_entropy(scores, target)

    found = (torch.compile(loss, backend="aot_eager", fullgraph=True) if compiled else loss)(scores)
    nothing = [False, True, True, False]
    assert found.isnan().tolist() == nothing and found[3] == 0
    torch.testing.assert_close(found[0].item(), 1.9459101)
    (gradient,) = torch.autograd.grad(found.sum(), scores)
    assert gradient.isnan().all(dim=1).tolist() == nothing and (gradient[3] == 0).all()


def test_functional_raises_pytorchs_error_for_such_an_index():
    from opforge.ops import functional

    with pytest.raises(IndexError, match="Target 7 is out of bounds"):
        functional.cross_entropy(torch.randn(3, 7), torch.tensor([0, 7, -100]))


def test_dropping_all_gives_zeros():
    """PyTorch's answer for p = 1, gradients too."""
    x = torch.tensor([1.0, torch.inf, torch.nan], requires_grad=True)
    y = ops.dropout(x, p=1.0)
    assert y.tolist() == [0.0, 0.0, 0.0]
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [0.0, 0.0, 0.0]
    assert (ops.layernorm_dropout(torch.randn(2, 3), torch.ones(3), torch.ones(3), p=1.0) == 0).all()
    q = torch.randn(1, 1, 3, 8, requires_grad=True)
    out, lse = ops.attention(q, q, q, dropout=1.0)
    assert (out == 0).all() and lse.isfinite().all()
    assert (torch.autograd.grad(out.sum(), q)[0] == 0).all()


@pytest.mark.parametrize("backend", ["torch", "cuda"])
def test_an_infinity_becomes_nan_in_fp8(backend):
    """One rule for all that stores FP8: beyond 448 is 448, and what is not finite is NaN."""
    name = {"torch": "torch_definition", "cuda": "cuda_mma"}.get(backend, "")
    x = torch.ones(5, 8, dtype=torch.float16)
    x[0, 0], x[1, 1], x[2], x[3, 2] = torch.inf, -torch.inf, 1e4, torch.nan
    given = x, torch.ones(16, 8, dtype=torch.float16), torch.zeros(16, dtype=torch.float16), torch.ones(1)
    found = opforge.get_kernel(backend, "linear_fp8", name)(*given).float()
    assert found[:2].isnan().all() and found[3].isnan().all()
    assert found[2].eq(448.0).all() and found[4].eq(8.0).all()
    q, _ = ops.quantize_fp8(torch.tensor([[torch.inf, 1.0, -torch.inf]]))
    assert q.float().isnan().tolist() == [[True, False, True]]


@pytest.mark.slow
@pytest.mark.own_servers
def test_verified_kernels_are_called_from_four_threads(tmp_path):
    """Each first call is made by whichever comes first; 10,000 such calls of four kernels gave no error."""
    from concurrent.futures import ThreadPoolExecutor

    from opforge.dispatch import Chooser, function_of
    from opforge.registry import load

    def calls(seed):
        softmax = function_of("softmax", chooser)
        draw = torch.Generator().manual_seed(seed)
        for size in (5, 64, 129, 1000) * 20:
            x = torch.randn(3, size, generator=draw)
            torch.testing.assert_close(softmax(x), x.softmax(-1))
        return softmax.why(x).implementation.name

    url = f"sqlite:///{tmp_path}/records.sqlite"
    ran = subprocess.run(
        [sys.executable, "-m", "opforge", "verify", "softmax", "--backend", "cpp", "--dtype", "float32", "--quick"],
        env={**os.environ, "OPFORGE_STORE": url},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-2000:]
    chooser = Chooser(load(), url)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(calls, range(4))) == {"cpp_twopass"}


def test_the_stub_is_of_todays_definitions():
    """`make docs` renews it; editors read it instead of the module."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from stub import stub
    finally:
        sys.path.pop(0)
    assert (ROOT / "src" / "opforge" / "ops" / "__init__.pyi").read_text(encoding="utf-8") == stub()
