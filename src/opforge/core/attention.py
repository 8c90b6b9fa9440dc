"""What attention computes, and what float32 and 16-bit products may make of it: shared by the forward operator and the
one of its gradients.

Tensors are [batch, heads, length, dim]; keys and values have one head for each group of query heads. A query sees the
keys that its window leaves: all else has no part in it, as if it were not there. Derived in docs/attention.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opforge.core.dtypes import DTYPES
from opforge.core.operator import Scalar
from opforge.core.rounding import BEYOND, CUT, EPSILON, Errors, finite, positive_sum, product_errors, sum_errors

ALIGNMENTS = ("bottom_right", "top_left")

SCALARS = (
    Scalar(name="scale", default=0.0, about="multiplies each score; 0 stands for 1 / sqrt(d)"),
    Scalar(name="causal", default=False, choices=(False, True), about="no query sees a key after its own place"),
    Scalar(
        name="align",
        default="bottom_right",
        choices=ALIGNMENTS,
        about="which query and key have one place: the last of both (bottom_right), or the first of both (top_left)",
    ),
    Scalar(name="window_left", default=-1, about="keys that a query sees before its own place; -1: all of them"),
    Scalar(name="window_right", default=-1, about="keys that a query sees after its own place; -1: all of them"),
    Scalar(name="softcap", default=0.0, about="c > 0 makes c * tanh(score / c) of each score"),
)
"""The parameters that forward and backward share."""

AT_ONCE = 1 << 25
"""Scores that are held at once: beyond, one head after another is computed."""

LOOSE = 0.25
"""From such an error of a score on, exponentials of a row say no more than that the result lies among its values."""

HALF_ULP = {"float32": 0.0, "bfloat16": 2.0**-8, "float16": 2.0**-11}
"""What rounding an exponential, or a gradient of a score, to the dtype of the factors costs, relative: the products of
16-bit tensors take 16-bit factors."""

FLUSHED = {"float32": 0.0, "bfloat16": 0.0, "float16": 2.0**-25}
"""What rounding loses below the smallest normal number of the dtype, absolute."""


def scale_of(scalars: Mapping[str, Any], dim: int) -> float:
    """The factor of the scores."""
    return float(scalars["scale"]) or 1 / math.sqrt(max(dim, 1))


def hidden_pairs(like: Any, queries: int, keys: int, scalars: Mapping[str, Any]) -> Any:
    """Which pairs [queries, keys] have no part; None where all have. `like` says the device."""
    left, right = int(scalars["window_left"]), 0 if scalars["causal"] else int(scalars["window_right"])
    if left < 0 and right < 0:
        return None
    place = like.new_ones(queries).cumsum(0).unsqueeze(1) - 1 + (keys - queries) * (scalars["align"] == ALIGNMENTS[0])
    distance = (like.new_ones(keys).cumsum(0) - 1) - place
    hidden = distance != distance
    if right >= 0:
        hidden = hidden | (distance > right)
    if left >= 0:
        hidden = hidden | (distance < -left)
    return hidden


def by_heads(function: Callable[..., Sequence[Any]], queries: Sequence[Any], keys: Sequence[Any]) -> list[Any]:
    """`function` of tensors of query heads and of key heads, each of the latter repeated for its group: all heads at
    once, or one after another where their scores are too many.
    """
    batch, heads, length = queries[0].shape[:3]
    group = heads // max(1, keys[0].shape[1])
    repeated = [tensor.repeat_interleave(group, dim=1) for tensor in keys]
    if batch * heads * length * keys[0].shape[2] <= AT_ONCE:
        return list(function(*queries, *repeated))
    found = [
        function(*(tensor[entry, head] for tensor in (*queries, *repeated)))
        for entry in range(batch)
        for head in range(heads)
    ]
    return [_stacked(parts, batch, heads) for parts in zip(*found, strict=True)]


def _stacked(parts: Sequence[Any], batch: int, heads: int) -> Any:
    first = parts[0]
    whole = first.new_empty((len(parts), *first.shape))
    # the standard library alone is imported here: written part by part, not torch.stack
    for place, part in enumerate(parts):
        whole[place] = part
    return whole.reshape(batch, heads, *first.shape)


def scores(q: Any, k: Any, scalars: Mapping[str, Any]) -> Any:
    """Scores [..., queries, keys], -inf where a query does not see a key."""
    found = (q @ k.transpose(-1, -2)) * scale_of(scalars, q.shape[-1])
    cap = float(scalars["softcap"])
    if cap > 0:
        found = cap * (found / cap).tanh()
    hidden = hidden_pairs(q, q.shape[-2], k.shape[-2], scalars)
    return found if hidden is None else found.masked_fill(hidden, -math.inf)


def attend(q: Any, k: Any, v: Any, scalars: Mapping[str, Any]) -> tuple[Any, Any]:
    """The result [..., queries, value dim] and the logarithm of each row's sum; 0 and -inf where nothing is seen."""
    found = scores(q, k, scalars)
    if not found.shape[-1]:
        empty = q.sum(dim=-1) * 0
        return empty.unsqueeze(-1) * v.new_zeros(v.shape[-1]), empty - math.inf
    peak = found.detach().amax(dim=-1, keepdim=True)
    peak = peak.masked_fill(peak == -math.inf, 0.0)
    weights = (found - peak).exp()
    total = weights.sum(dim=-1, keepdim=True)
    out = (weights @ v) / total.masked_fill(total == 0, 1.0)
    return out, (peak + total.log()).squeeze(-1)


def attend_backward(
    dout: Any, q: Any, out: Any, lse: Any, dlse: Any, k: Any, v: Any, scalars: Mapping[str, Any]
) -> tuple[Any, Any, Any]:
    """dq, dk, dv of each query head; dk and dv are added up over a group by the caller."""
    weights, slopes = weights_and_slopes(dout, q, out, lse, dlse, k, v, scalars)
    scale = scale_of(scalars, q.shape[-1])
    return (
        scale * (slopes @ k),
        scale * (slopes.transpose(-1, -2) @ q),
        weights.transpose(-1, -2) @ dout,
    )


def weights_and_slopes(
    dout: Any, q: Any, out: Any, lse: Any, dlse: Any, k: Any, v: Any, scalars: Mapping[str, Any]
) -> tuple[Any, Any]:
    """The weights exp(score - lse), and the gradients of the scores before they were scaled and capped."""
    found = scores(q, k, scalars)
    nothing = (lse == -math.inf).unsqueeze(-1)
    weights = (found - lse.unsqueeze(-1)).exp().masked_fill(nothing | (found == -math.inf), 0.0)
    middle = (dout * out).sum(dim=-1) - dlse
    slopes = weights * (dout @ v.transpose(-1, -2) - middle.unsqueeze(-1))
    cap = float(scalars["softcap"])
    if cap > 0:
        slopes = slopes * (1 - (found.masked_fill(found == -math.inf, 0.0) / cap).square())
    return weights, slopes


# ---- what the arithmetic may be off --------------------------------------------------------------------------------


def _of_scores(q: Any, k: Any, scalars: Mapping[str, Any], cut: bool) -> tuple[Any, Errors]:
    """The scores, and what each may be off: the product's sums, the factors applied to it."""
    scale, cap = scale_of(scalars, q.shape[-1]), float(scalars["softcap"])
    errors = product_errors(q, finite(k).transpose(-1, -2), cut=cut).times(scale)
    found = (finite(q) @ finite(k).transpose(-1, -2)) * scale
    if cap > 0:
        capped = (found / cap).tanh()
        # tanh within a few units of its last place, of a quotient that was rounded
        errors = errors.times(1 - capped * capped) + _ulps(cap * capped, 8.0, 3.0)
        found = cap * capped
    return found, errors + _ulps(found, 2.0, 1.0)


def _ulps(size: Any, largest: float, typical: float) -> Errors:
    return Errors(largest * EPSILON * size.abs(), typical * EPSILON * size.abs())


def _spread(errors: Any, factors: Any) -> Any:
    """What independent errors [..., m, n] of the left factor make of a product with `factors` [..., n, k]: the root of
    the sum of squares.
    """
    return (errors.square() @ factors.square()).sqrt()


def _of_roundings(values: Any, factors: Any, room: float) -> Any:
    """What rounding each of `values` by one unit makes of values @ factors: the spread of independent ones, and all of
    them where equal values are rounded alike; at most all of them in one direction.
    """
    likely = room * _spread(values, factors) + (values @ factors).abs()
    return likely.minimum(values.abs() @ factors.abs())


def forward_errors(q: Any, k: Any, v: Any, scalars: Mapping[str, Any], dtype: str) -> tuple[Any, ...]:
    """Largest, typical and reached, of the result and of the logarithms. Exponentials are off by what their scores are,
    each for itself; a tensor core's truncation is alike for all. 16-bit factors of the second product are rounded once.
    """
    cut, half = dtype != "float32", HALF_ULP[dtype]
    q, k, v = finite(q), finite(k), finite(v)
    found, of_scores = _of_scores(q, k, scalars, cut)
    hidden = hidden_pairs(q, q.shape[-2], k.shape[-2], scalars)
    masked = found if hidden is None else found.masked_fill(hidden, -math.inf)
    count = found.shape[-1]
    if not count:
        out, lse = attend(q, k, v, scalars)
        return out, out, out, finite(lse), finite(lse), finite(lse)
    peak = finite(masked.amax(dim=-1, keepdim=True))
    weights = (masked - peak).exp()
    total = weights.sum(dim=-1, keepdim=True)
    weights = weights / total.masked_fill(total == 0, 1.0)
    distance = finite(masked - peak).abs()
    arguments = EPSILON * (4 + 3 * distance + 2 * peak.abs())
    seen = 1.0 if hidden is None else 1.0 - hidden.to(found.dtype)
    largest_score, typical_score = (of_scores.largest + arguments) * seen, (of_scores.typical + 0.4 * arguments) * seen
    product = weights @ v
    size, deviation = product.abs(), _spread(weights, v)
    of_product = product_errors(weights, v, cut=cut)
    in_sum, in_sum_typical = positive_sum(count)
    rounded = (
        half * (2 * deviation + size).minimum(weights @ v.abs())
        + 2 * FLUSHED[dtype] * v.square().sum(dim=-2, keepdim=True).sqrt()
    )
    alike = CUT if cut else 1 / 64

    def carried(of_score: Any, room: float) -> Any:
        off = weights * of_score.clamp(max=1.0).expm1()
        together = off.sum(dim=-1, keepdim=True) * size + off @ v.abs()
        alone = _spread(off, v) + off.square().sum(dim=-1, keepdim=True).sqrt() * size
        return room * alone + alike * together

    loose = (largest_score.amax(dim=-1, keepdim=True) > LOOSE) * 2 * v.abs().amax(dim=-2, keepdim=True)
    largest = carried(largest_score, 2.0) + of_product.largest + size * in_sum + rounded + 2 * EPSILON * size + loose
    typical = (
        carried(typical_score, 1.0)
        + of_product.typical
        + size * in_sum_typical
        + half * (deviation + size).minimum(weights @ v.abs())
        + EPSILON * size
        + loose
    )
    reached = (of_scores.reached if of_scores.reached is not None else found.abs()).amax(dim=-1, keepdim=True)
    reached = reached + 4 * v.abs().amax(dim=-2, keepdim=True) * count**0.5
    lse = finite(peak + total.log()).squeeze(-1)
    logs = EPSILON * (3 * peak.squeeze(-1).abs() + 2 * lse.abs() + 2 * finite(total.log()).squeeze(-1).abs() + 1)
    return (
        largest,
        typical,
        reached.expand(largest.shape),
        (weights * largest_score).sum(dim=-1) + in_sum + logs,
        (weights * typical_score).sum(dim=-1) + in_sum_typical + 0.5 * logs,
        reached.amax(dim=-1).expand(lse.shape),
    )


def backward_errors(
    dout: Any, q: Any, out: Any, lse: Any, dlse: Any, k: Any, v: Any, scalars: Mapping[str, Any], dtype: str
) -> tuple[Any, ...]:
    """Largest, typical and reached of dq, dk and dv of each query head. Weights and slopes are rounded to the dtype of
    the factors before they are multiplied; a row's sum of dout * out is in all of its slopes.
    """
    cut, half, scale = dtype != "float32", HALF_ULP[dtype], scale_of(scalars, q.shape[-1])
    dout, q, out, dlse, k, v = (finite(tensor) for tensor in (dout, q, out, dlse, k, v))
    if not q.shape[-2] or not k.shape[-2]:
        return tuple(tensor * 0.0 for tensor in (q, q, q, k, k, k, v, v, v))
    found, of_scores = _of_scores(q, k, scalars, cut)
    weights, slopes = weights_and_slopes(dout, q, out, lse, dlse, k, v, scalars)
    weights, slopes = finite(weights), finite(slopes)
    lse = finite(lse).unsqueeze(-1)
    there = weights > 0
    arguments = EPSILON * (4 + 3 * (found - lse).abs() + 2 * found.abs() + 2 * lse.abs())
    of_product = product_errors(dout, v.transpose(-1, -2), cut=cut)
    of_middle = sum_errors(dout * out) + _ulps(dlse.unsqueeze(-1), 2.0, 1.0)
    inner = dout @ v.transpose(-1, -2)
    middle = (dout * out).sum(dim=-1, keepdim=True) - dlse.unsqueeze(-1)
    slack = 2 * EPSILON * (inner.abs() + middle.abs())
    alike = CUT if cut else 1 / 64
    parts = []
    for of_score, of_inner, of_level, room, share in (
        (of_scores.largest + arguments, of_product.largest + slack, of_middle.largest, 2.0, 1.0),
        (of_scores.typical + 0.4 * arguments, of_product.typical + 0.5 * slack, of_middle.typical, 1.0, 0.6),
    ):
        off = weights * of_score.clamp(max=60.0).expm1() * there
        difference = (inner - middle).abs()
        off_slopes = off * (difference + of_inner) + weights * of_inner + 8 * EPSILON * slopes.abs()
        level = weights * of_level

        def through(
            errors: Any, values: Any, shared: Any, factors: Any, room: float = room, share: float = share
        ) -> Any:
            rounded = half * _of_roundings(values, factors, 2 * share)
            lost = 2 * FLUSHED[dtype] * factors.square().sum(dim=-2, keepdim=True).sqrt()
            return room * _spread(errors, factors) + alike * (errors @ factors.abs()) + shared + rounded + lost

        def turned(matrix: Any) -> Any:
            return matrix.transpose(-1, -2)

        parts.append(
            (
                scale * through(off_slopes, slopes, (level @ k).abs(), k),
                scale * through(turned(off_slopes), turned(slopes), 2 * _spread(turned(level), q), q),
                through(turned(off), turned(weights), 0.0, dout),
            )
        )
    products = (
        product_errors(slopes, k, cut=cut).times(scale),
        product_errors(slopes.transpose(-1, -2), q, cut=cut).times(scale),
        product_errors(weights.transpose(-1, -2), dout, cut=cut),
    )
    high = of_scores.reached if of_scores.reached is not None else found.abs()
    beyond = BEYOND * ((weights.maximum(slopes.abs()) > DTYPES[dtype].largest / 4) | ((found - lse) > 85)).double()
    high = high + inner.abs() * 4 + beyond
    by_query, by_key = high.amax(dim=-1, keepdim=True), high.amax(dim=-2).unsqueeze(-1)
    result: list[Any] = []
    for place, (product, reached) in enumerate(zip(products, (by_query, by_key, by_key), strict=True)):
        whole = parts[0][place] + product.largest
        result += [whole, parts[1][place] + product.typical, (product.reached + reached).expand(whole.shape)]
    return tuple(result)
