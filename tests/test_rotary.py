"""Rotary positions: beside complex numbers, which share no code with them; positions that aren't there; the module."""

from __future__ import annotations

import pytest
import torch

from opforge import get_kernel, ops


def tables(places, half):
    angle = torch.outer(torch.arange(places, dtype=torch.float64), 10000.0 ** (-torch.arange(half) / half).double())
    return angle.cos().float(), angle.sin().float()


def by_complex_numbers(x, positions, half, interleaved):
    """x [batch, tokens, heads, dim] in float64: each pair is one complex number, times exp(i angle)."""
    speed = 10000.0 ** (-torch.arange(half) / half).double()
    turn = torch.polar(torch.ones(1, dtype=torch.float64), positions[..., None, None].double() * speed)
    part = x[..., : 2 * half].double()
    first, second = (part[..., 0::2], part[..., 1::2]) if interleaved else part.chunk(2, dim=-1)
    turned = torch.complex(first, second) * turn
    pairs = torch.view_as_real(turned)
    rotated = pairs.flatten(-2) if interleaved else torch.cat(pairs.unbind(-1), dim=-1)
    return torch.cat((rotated, x[..., 2 * half :].double()), dim=-1)


@pytest.mark.parametrize("interleaved", [False, True])
def test_it_turns_as_complex_numbers_do(interleaved):
    """C++ and PyTorch, with a part of each head, positions in any order, and strides of a packed product."""
    torch.manual_seed(0)
    packed = torch.randn(2, 5, 4 * 20 + 2 * 20 + 7)
    q, k = packed[..., :80].view(2, 5, 4, 20), packed[..., 80:120].view(2, 5, 2, 20)
    positions = torch.randint(0, 50, (2, 5))
    cos, sin = tables(50, 6)
    for backend in ("torch", "cpp"):
        for x, y in zip(
            (q, k), get_kernel(backend, "rotary")(q, k, cos, sin, positions, interleaved=interleaved), strict=True
        ):
            torch.testing.assert_close(
                y.double(), by_complex_numbers(x, positions, 6, interleaved), rtol=1e-5, atol=1e-5
            )


def test_its_gradient_turns_back():
    """A rotation's gradient is the rotation by the negative angle: turning what came out gives what went in."""
    torch.manual_seed(0)
    q, k = torch.randn(3, 2, 12, requires_grad=True), torch.randn(3, 1, 12, requires_grad=True)
    q_out, k_out = ops.rotary(q, k, *tables(3, 4))
    dq, dk = torch.autograd.grad((q_out, k_out), (q, k), (q_out.detach(), k_out.detach()))
    torch.testing.assert_close(dq, q.detach())
    torch.testing.assert_close(dk, k.detach())


@pytest.mark.parametrize("backend", ["torch", "cpp"])
def test_a_position_that_is_not_there_is_nan(backend):
    """Never memory outside the tables, and what is not turned stays."""
    q, k = torch.randn(1, 3, 2, 10), torch.randn(1, 3, 0, 10)
    positions = torch.tensor([[-1, 1, 7]])
    y, _ = get_kernel(backend, "rotary")(q, k, *tables(7, 4), positions)
    assert y[0, ::2, :, :8].isnan().all() and y[0, 1].isfinite().all()
    assert (y[..., 8:] == q[..., 8:]).all()


def test_the_module_keeps_its_tables_in_float32():
    """A model converted to bfloat16 would turn a token at place 4097 as one at 4096."""
    from opforge import nn

    module = nn.RotaryEmbedding(8, 16)
    cos = module.cos.clone()
    module.to(torch.bfloat16)
    assert module.cos.dtype == torch.float32 and (module.cos == cos).all() and not module.state_dict()
    q, k = torch.randn(2, 5, 3, 10), torch.randn(2, 5, 1, 10)
    positions = torch.arange(5).expand(2, 5)
    for in_order, given in zip(module(q, k), module(q, k, positions), strict=True):
        assert (in_order == given).all()
    empty = nn.RotaryEmbedding(8, 16, device="meta").to_empty(device="cpu")
    empty.reset_parameters()
    assert (empty.cos == cos).all()
    with pytest.raises(ValueError, match="even number"):
        nn.RotaryEmbedding(7, 16)
