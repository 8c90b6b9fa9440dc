"""What holds of attention beyond its cases: large calls in parts, how many pairs are seen, and PyTorch's own answer."""

import itertools

import pytest
import torch

from opforge.core import attention
from opforge.core.expr import evaluate
from opforge.registry import load

OPERATOR = load([]).operator("attention")


def given(queries=23, keys=31):
    make = torch.Generator().manual_seed(7)
    shapes = ((2, 6, queries, 8), (2, 3, keys, 8), (2, 3, keys, 5))
    return [torch.randn(shape, generator=make, dtype=torch.float64) for shape in shapes]


MASKS = [
    {"causal": causal, "window_left": left, "window_right": right, "alignment": alignment}
    for causal, left, right, alignment in itertools.product(
        (False, True), (-1, 0, 4), (-1, 3), ("top_left", "bottom_right")
    )
]


@pytest.mark.parametrize("rows", [1, 5])
def test_parts_give_what_the_whole_gives(monkeypatch, rows):
    tensors = given()
    scalars = OPERATOR.scalar_values({"causal": True, "window_left": 6, "alignment": "bottom_right", "softcap": 3.0})
    whole = OPERATOR.reference(*tensors, **scalars)
    named = dict(zip("qkv", tensors, strict=True))
    outputs = dict(zip(("out", "lse"), whole, strict=True))
    bounds = attention.attention_errors(named, outputs, scalars, "bfloat16")
    monkeypatch.setattr(attention, "TOGETHER", rows * 2 * 31)
    for one, other in zip(OPERATOR.reference(*tensors, **scalars), whole, strict=True):
        assert torch.allclose(one, other, rtol=1e-13, atol=1e-15)
    parts = attention.attention_errors(named, outputs, scalars, "bfloat16")
    for name in outputs:
        assert torch.allclose(parts[name].largest, bounds[name].largest, rtol=1e-12)
        assert torch.allclose(parts[name].typical, bounds[name].typical, rtol=1e-12)


@pytest.mark.parametrize(("queries", "keys"), [(5, 9), (9, 5), (6, 6), (1, 4)])
def test_pairs_are_counted_as_they_are_seen(queries, keys):
    for mask in MASKS:
        seen = 0
        for i in range(queries):
            place = i + (keys - queries if mask["alignment"] == "bottom_right" else 0)
            for j in range(keys):
                left = mask["window_left"] < 0 or j >= place - mask["window_left"]
                right = mask["window_right"] < 0 or j <= place + mask["window_right"]
                seen += left and right and (not mask["causal"] or j <= place)
        assert evaluate(attention.PAIRS, {**mask, "queries": queries, "keys": keys}) == seen, mask
        q = given(queries, keys)[0]
        assert int(attention.visible(q, keys, 0, queries, mask).sum()) == seen, mask


def test_the_oracle_is_what_pytorch_computes():
    q, k, v = given()
    scalars = OPERATOR.scalar_values({"causal": True})
    out, lse = OPERATOR.reference(q, k, v, **scalars)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    # sums of at most 31 weights and products of 8 terms in float64
    assert (out - wanted).abs().max() < 64 * 2.0**-52
    assert lse.shape == out.shape[:-1] and bool(lse.isfinite().all())
