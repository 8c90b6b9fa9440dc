"""How far running sums and products of float32 may be off, in whatever order a scan combines neighbours.

A scan combines parts that lie side by side: what it holds on the way to element i is the sum, or the product, of a
stretch that ends at i or before. The largest of those is known exactly, as a difference of two running sums.
"""

from __future__ import annotations

from typing import Any

from opforge.core.definition.rounding_errors import Errors
from opforge.definitions.bounds.sums import ALIKE, BEYOND, EPSILON, FEW, LARGEST, TYPICAL, finite

LEAST = 2.0**-126
"""The smallest normal float32: a product below may be 0."""


def prefix_sum_errors(terms: Any) -> Errors:
    """Of the running sums along the last axis of `terms` (float64), added one after another or in any tree."""
    terms = finite(terms)
    count = _count(terms)
    sums = terms.cumsum(dim=-1)
    # a stretch may begin before the first element: with a sum of 0
    highest = sums.clamp(min=0.0).cummax(dim=-1).values if terms.shape[-1] else sums
    lowest = sums.clamp(max=0.0).cummin(dim=-1).values if terms.shape[-1] else sums
    # of few terms nothing is left to chance
    peak = (highest - lowest).where(count > FEW, terms.abs().cumsum(dim=-1))
    squares = terms.square().cumsum(dim=-1)
    spread = squares - sums.square() / count
    alike = spread <= squares * (16 * (EPSILON * count) ** 2).clamp(min=1e-14)
    linear = ALIKE * count * (alike & (count > FEW)).double()
    return Errors(
        EPSILON * peak * (LARGEST * count.sqrt() + linear),
        EPSILON * peak * (TYPICAL * count.sqrt() + linear),
        reached=4 * peak,
    )


def prefix_product_errors(factors: Any) -> Errors:
    """Of the running products along the last axis of `factors` (float64), each multiplication rounded once.

    Where a stretch leaves the range of float32 the product is whatever that made of it; where one may be flushed to 0,
    so may everything after it.
    """
    count = _count(factors)
    size = finite(factors.cumprod(dim=-1)).abs()
    logs = finite(factors).abs().clamp(min=1e-300).log()
    until = logs.cumsum(dim=-1)
    if not factors.shape[-1]:
        return Errors(size, size, size)
    before = until - logs
    widest = (until - before.cummin(dim=-1).values).cummax(dim=-1).values
    # zeros that are given are exact: they do not count as flushed
    nonzero = logs.where(finite(factors) != 0, 0.0)
    kept = nonzero.cumsum(dim=-1)
    narrowest = (kept - (kept - nonzero).cummax(dim=-1).values).cummin(dim=-1).values
    flushed = narrowest.exp() < 2 * LEAST
    # NaN of an infinity times what was flushed
    met = flushed & (~factors.isfinite()).cummax(dim=-1).values
    reached = widest.clamp(max=340.0).exp().where(~met, BEYOND)
    relative = EPSILON * count
    return Errors(
        size * relative + (size + LEAST).where(flushed, 0.0),
        size * 0.5 * relative + (size + LEAST).where(flushed, 0.0),
        reached=reached,
    )


def _count(values: Any) -> Any:
    """How many elements there are up to each, along the last axis."""
    return values.new_ones(values.shape[-1]).cumsum(dim=-1)
