"""Embedding's gradient: the same bits each run, padding, and indices that aren't there."""

from __future__ import annotations

import pytest
import torch

from opforge import get_kernel


def test_terms_are_added_in_float32_in_one_order():
    """C++, forty terms of a row in bfloat16, beside a plain sum; padding and indices of no row add nothing."""
    torch.manual_seed(0)
    indices, dy = torch.randint(-2, 9, (40, 10)), torch.randn(40, 10, 6).bfloat16()
    weight = torch.zeros(7, 6).bfloat16()
    kernel = get_kernel("cpp", "embedding_backward")
    dweight = kernel(weight, indices, dy, padding_idx=4)
    for row in range(7):
        # one rounding to bfloat16: half of 2^-7
        wanted = dy[indices == row].double().sum(dim=0) if row != 4 else torch.zeros(6).double()
        torch.testing.assert_close(dweight[row].double(), wanted, rtol=2.0**-8, atol=1e-6)
    assert all((kernel(weight, indices, dy, padding_idx=4) == dweight).all() for _ in range(3))


def test_an_index_of_no_row_is_nan_and_reads_nothing():
    """C++ where PyTorch raises an error; opforge.ops.functional leaves such a call to it."""
    from opforge.ops import functional

    indices = torch.tensor([0, -1, 3, 2])
    rows = get_kernel("cpp", "embedding")(torch.ones(3, 4), indices)
    assert rows[[0, 3]].isfinite().all() and rows[[1, 2]].isnan().all()
    with pytest.raises(IndexError):
        functional.embedding(indices, torch.ones(3, 4))


def test_the_module_is_pytorchs_with_its_table(front_door):
    """Results, the gradient of the table without its padding, and what PyTorch keeps for itself."""
    from opforge import nn

    indices = torch.tensor([[0, 2, 2], [6, 1, 2]])
    for named in ({"padding_idx": 2}, {"padding_idx": -1}, {}, {"scale_grad_by_freq": True}):
        theirs, mine = torch.nn.Embedding(7, 5, **named), nn.Embedding(7, 5, **named)
        assert mine.load_state_dict(theirs.state_dict()).missing_keys == [] and repr(mine) == repr(theirs)
        rows, wanted = mine(indices), theirs(indices)
        assert (rows == wanted).all()
        incoming = torch.randn_like(rows)
        (gradient,), (other,) = (
            torch.autograd.grad(out, (module.weight,), incoming) for out, module in ((rows, mine), (wanted, theirs))
        )
        torch.testing.assert_close(gradient, other)
