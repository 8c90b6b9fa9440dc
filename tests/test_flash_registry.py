"""opforge in PyTorch's registry of flash attentions: asked first, refused where it must be, and gone afterwards."""

import pytest
import torch
from tests.named_kernels import Named
from torch.nn.functional import scaled_dot_product_attention

from opforge.core.language.errors import UsageError
from opforge.dispatch import Function
from opforge.registry import load

pytestmark = pytest.mark.skipif(
    not hasattr(torch.nn.attention, "register_flash_attention_impl"),
    reason="this PyTorch has no registry: from 2.13 on",
)


def calls():
    make = torch.Generator().manual_seed(2)
    leaves = [torch.randn(2, 4, length, 32, generator=make, requires_grad=True) for length in (65, 70, 70)]
    mask = torch.rand(65, 70, generator=make) > 0.4
    mask[3] = False  # who sees nothing gives 0
    bias = torch.randn(2, 1, 65, 70, generator=make)
    found = []
    for named in ({}, {"is_causal": True}, {"attn_mask": mask}, {"attn_mask": bias, "scale": 0.3}, {"dropout_p": 0.2}):
        torch.manual_seed(5)
        out = scaled_dot_product_attention(*leaves, **named)
        found.append((out, *torch.autograd.grad(out, leaves, torch.linspace(-1, 1, out.numel()).view_as(out))))
    return found


def test_scaled_dot_product_attention_runs_opforge_once_it_is_activated(front_door, monkeypatch):
    """Forward by the C++ kernel, backward by PyTorch from its log-sum-exp; dropout is PyTorch's own, and untouched."""
    from opforge.ops import flash_registry

    registry = load([])
    own = Function(registry.operator("attention"), Named(registry, "cpp_blocked"))
    monkeypatch.setitem(vars(front_door), "attention", own)
    before = calls()
    name = flash_registry.register()
    assert name in torch.nn.attention.list_flash_attention_impls()
    torch.nn.attention.activate_flash_attention_impl(name)
    try:
        active = torch.nn.attention._registry._FLASH_ATTENTION_ACTIVE[1]
        during = calls()
        assert active.counts[flash_registry.FORWARD_CPU] == 4
    finally:
        torch.nn.attention.restore_flash_attention_impl()
    for one, other in zip(during, before, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-4, atol=2e-5)
    assert not torch.equal(during[0][0], before[0][0]) or not torch.equal(during[1][0], before[1][0])
    after = calls()
    assert active.counts[flash_registry.FORWARD_CPU] == 4
    assert all(
        torch.equal(a, b) for one, other in zip(after, before, strict=True) for a, b in zip(one, other, strict=True)
    )


def test_a_pytorch_without_a_registry_is_told_what_to_do(front_door, monkeypatch):
    from opforge.ops import flash_registry

    monkeypatch.delattr(torch.nn.attention, "register_flash_attention_impl")
    with pytest.raises(UsageError, match=r"functional\.scaled_dot_product_attention"):
        flash_registry.register()
