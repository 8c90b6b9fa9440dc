"""Routing to experts, beside PyTorch's topk and autograd where no logits are equal."""

from __future__ import annotations

import pytest
import torch

from opforge import get_kernel, ops


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_it_is_topk_of_the_scores(score, normalise):
    """Weights, experts and gradients, of C++ and of what ops takes."""
    torch.manual_seed(0)
    logits = torch.randn(5, 3, 17)
    mine, theirs = (logits.clone().requires_grad_() for _ in range(2))
    wanted, places = (theirs.softmax(-1) if score == "softmax" else theirs.sigmoid()).topk(4)
    if normalise:
        wanted = wanted / wanted.sum(-1, keepdim=True)
    given = {"k": 4, "score": score, "normalise": normalise}
    weights, chosen = ops.topk_routing(mine, **given)
    compiled, same = get_kernel("cpp", "topk_routing")(logits, **given)
    assert (chosen == places).all() and (same == places).all() and not chosen.requires_grad
    for found in (weights, compiled):
        torch.testing.assert_close(found, wanted)
    arrived = torch.randn_like(wanted)
    (gradient,) = torch.autograd.grad(wanted, theirs, arrived)
    torch.testing.assert_close(torch.autograd.grad(weights, mine, arrived)[0], gradient)
    kernel = get_kernel("cpp", "topk_routing_backward")
    torch.testing.assert_close(kernel(logits, places, arrived, **given), gradient)


def test_of_equal_logits_the_first_experts_are_chosen():
    """A row of one value in bfloat16, where torch.topk may take any."""
    for backend in ("torch", "cpp"):
        _, chosen = get_kernel(backend, "topk_routing")(torch.ones(2, 40).bfloat16(), k=6)
        assert (chosen == torch.arange(6)).all()
