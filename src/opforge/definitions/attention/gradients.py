"""The gradients of attention, for references and bounds: weights made again from the log-sum-exp, the gradients of the
scores, and how far 16 and 32 bits may be off; on whatever has the methods of a tensor, so no library is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.rounding_errors import Errors
from opforge.definitions.attention.attention import (
    HALF_STEP,
    INDEPENDENT,
    TOGETHER,
    capped_of,
    for_heads,
    scale_of,
    score_errors,
    scores_of,
)
from opforge.definitions.attention.sides import Sides
from opforge.definitions.bounds.sums import BEYOND, CUT, EPSILON, few_ulps, finite, product_errors, sum_errors

FLUSHED = {"float32": 0.0, "float16": 2.0**-25, "bfloat16": 0.0}
"""What that rounding loses below the smallest normal number of the dtype, absolute."""

NEAR = (1, 2, 3, 5)
"""Distances at which equal values of a row are looked for."""

STEEP = 85.0
"""Where a score, with its error, is so far above the log-sum-exp, its weight may leave the range of float32."""


def by_heads(
    function: Callable[..., Sequence[Any]], of_queries: Sequence[Any], of_keys: Sequence[Any], sides: Sides
) -> list[Any]:
    """`function` of tensors that have a head for each of q, of tensors that have those of k, repeated for their
    groups, and of what is given beside: of all heads at once, or of one after another where their scores are too many.
    Results have q's heads.
    """
    first, keys = of_queries[0], of_keys[0].shape[2]
    batch, heads, queries = first.shape[:3]
    repeated = [for_heads(first, tensor) for tensor in of_keys]
    if batch * heads * queries * keys <= TOGETHER:
        return list(function(*of_queries, *repeated, sides))
    whole: list[Any] = []
    for entry in range(batch):
        for head in range(heads):
            part = (slice(entry, entry + 1), slice(head, head + 1))
            found = function(*(tensor[part] for tensor in (*of_queries, *repeated)), sides.part(*part, slice(None)))
            if not whole:
                whole = [piece.new_zeros((batch, heads, *piece.shape[2:])) for piece in found]
            for result, piece in zip(whole, found, strict=True):
                result[part] = piece
    return whole


def over_groups(tensor: Any, heads: int) -> Any:
    """[batch, heads, group, …] of a tensor that has q's heads."""
    return tensor.unflatten(1, (heads, tensor.shape[1] // heads)) if heads else tensor.unsqueeze(2)


def slopes_of(
    q: Any, out: Any, lse: Any, dout: Any, dlse: Any, k: Any, v: Any, sides: Sides, *, scalars: Mapping[str, Any]
) -> tuple[Any, Any, Any, Any]:
    """The scores, the weights exp(score - lse), the gradients of the scores before they were scaled and capped, and
    what dropout makes of the weights (None: nothing).
    """
    scores, weights, slopes, kept = added_slopes_of(q, out, lse, dout, dlse, k, v, sides, scalars=scalars)
    if scalars["softcap"] > 0:
        slopes = slopes * (1 - (capped_of(q, k, dict(scalars)) / scalars["softcap"]).square())
    return scores, weights, slopes, kept


def added_slopes_of(
    q: Any, out: Any, lse: Any, dout: Any, dlse: Any, k: Any, v: Any, sides: Sides, *, scalars: Mapping[str, Any]
) -> tuple[Any, Any, Any, Any]:
    """As `slopes_of`, with the gradients of scores as they are after the cap: of what is added to them there."""
    scores, kept = scores_of(q, k, sides, dict(scalars)), sides.kept(q, k.shape[-2], scalars)
    hidden = (lse.unsqueeze(-1) == -float("inf")) | (scores == -float("inf"))
    # before exp: what is hidden has derivatives of 0 then, not of infinity times 0
    weights = (scores - lse.unsqueeze(-1)).masked_fill(hidden, -float("inf")).exp()
    middle = (dout * out).sum(dim=-1) - dlse
    inner = dout @ v.transpose(-1, -2)
    slopes = weights * ((inner if kept is None else inner * kept) - middle.unsqueeze(-1))
    return scores, weights, slopes, kept


def differentiated(
    q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, dlse: Any, sides: Sides, scalars: Mapping[str, Any]
) -> tuple[Any, Any, Any]:
    """(dq, dk, dv), of what attention returned and what arrives for both of its results."""

    def one(*given: Any) -> tuple[Any, Any, Any]:
        q, dout, k = given[0], given[3], given[5]
        _, weights, slopes, kept = slopes_of(*given, scalars=scalars)
        weights = weights if kept is None else weights * kept
        scale = scale_of(q, dict(scalars))
        return scale * (slopes @ k), scale * (slopes.transpose(-1, -2) @ q), weights.transpose(-1, -2) @ dout

    dq, dk, dv = by_heads(one, (q, out, lse, dout, dlse), (k, v), sides)
    heads = k.shape[1]
    return dq, over_groups(dk, heads).sum(dim=2), over_groups(dv, heads).sum(dim=2)


def bias_differentiated(
    q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, dlse: Any, sides: Sides, scalars: Mapping[str, Any]
) -> Any:
    """dbias, of what attention returned and what arrives for both of its results."""

    def one(*given: Any) -> tuple[Any]:
        return (added_slopes_of(*given, scalars=scalars)[2],)

    return by_heads(one, (q, out, lse, dout, dlse), (k, v), sides)[0]


def bias_errors(inputs: Mapping[str, Any], scalars: Mapping[str, Any], dtype: str) -> dict[str, Errors]:
    """Of dbias, a gradient of a score each: what its weight, dout @ v and its row's sum of dout * out may be off."""
    q = inputs["q"]
    if not q.numel():
        return {"dbias": Errors(inputs["bias"] * 0.0, inputs["bias"] * 0.0)}
    names = ("q", "out", "lse", "dout", "dlse", "k", "v")
    given = [inputs[name] if name == "lse" else finite(inputs[name]) for name in names]

    def one(*given: Any) -> tuple[Any, ...]:
        of = _off(*given, scalars=scalars, dtype=dtype, capped=False)
        return *(off_slope + level for _, off_slope, level in of.parts), of.high

    largest, typical, reached = by_heads(one, given[:5], given[5:], Sides.of(given[0], inputs))
    return {"dbias": Errors(largest, typical, reached)}


def sinks_differentiated(out: Any, lse: Any, dout: Any, dlse: Any, sinks: Any) -> Any:
    """dsinks, of what attention returned and what arrives for both of its results: what a sink takes of a row is taken
    from all of its weights.
    """
    share, middle = _shares(lse, sinks), (dout * out).sum(dim=-1) - dlse
    return -(share * middle).sum(dim=(0, 2))


def _shares(lse: Any, sinks: Any) -> Any:
    """What of each row's sum is the sink's, [batch, heads, queries]; nothing of a row that has no sum."""
    return (sinks.reshape(-1, 1) - lse).exp().masked_fill(lse == -float("inf"), 0.0)


def sinks_errors(inputs: Mapping[str, Any]) -> dict[str, Errors]:
    """Of dsinks, a sum over all rows of a head: each share carries what the difference of sink and log-sum-exp may be
    off, as a relative error, and each sum of dout * out its own. Those of rows are independent, or to one side where
    shares are alike; what the sink's own rounding does is in all rows of its head.
    """
    out, lse, dout, dlse, sinks = (finite(inputs[name]) for name in ("out", "lse", "dout", "dlse", "sinks"))
    share = finite(_shares(inputs["lse"], inputs["sinks"]))
    of_middle = sum_errors(dout * out) + few_ulps(dlse.abs().unsqueeze(-1), 2.0, 1.0)
    middle = ((dout * out).sum(dim=-1) - dlse).abs()
    # of exp2's argument, a difference of two numbers in units of log(2)
    line = sinks.reshape(-1, 1)
    argument = EPSILON * (4 + 3 * (line - lse).abs() + 2 * lse.abs())
    terms = (share * ((dout * out).sum(dim=-1) - dlse)).transpose(0, 1).flatten(1)
    added, of_sink = sum_errors(terms), 2 * EPSILON * sinks.abs() * terms.sum(dim=-1).abs()
    together = (
        _coincidence(share.transpose(0, 1).flatten(1), "float32") if terms.numel() else terms.sum(dim=-1, keepdim=True)
    )
    found = []
    for off_middle, off_share, of_sum, part, room in (
        (of_middle.largest, argument, added.largest, 1.0, 2.0),
        (of_middle.typical, 0.4 * argument, added.typical, 0.4, 1.0),
    ):
        off = (share + vanished(share)) * (off_share * middle + off_middle.squeeze(-1)) + vanished(share) * middle
        off = (off + 2 * EPSILON * share * middle + vanished(share * middle)).transpose(0, 1).flatten(1)
        level = (2 * room * together).clamp(min=1 / 64, max=1.0).squeeze(-1) * off.sum(dim=-1)
        found.append(room * off.square().sum(dim=-1).sqrt() + level + part * of_sink + of_sum.squeeze(-1))
    high = of_middle.reached.squeeze(-1) * share.clamp(min=1.0)
    if not terms.numel():
        return {"dsinks": Errors(found[0], found[1])}
    reached = high.transpose(0, 1).flatten(1).amax(dim=-1).maximum(added.reached.squeeze(-1))
    return {"dsinks": Errors(found[0], found[1], reached)}


def gradient_errors(inputs: Mapping[str, Any], scalars: Mapping[str, Any], dtype: str) -> dict[str, Errors]:
    """Of dq, dk and dv. A weight carries what its score may be off; a gradient of a score that, and what dout @ v and
    the row's sum of dout * out may be off, which is in all gradients of its row. Both are rounded to the dtype of the
    factors before they are multiplied. The heads of a group are added up.
    """

    def one(*given: Any) -> tuple[Any, ...]:
        return _errors(*given, scalars=scalars, dtype=dtype)

    if not inputs["q"].numel():
        # no queries: sums of nothing, which are 0
        return {f"d{name}": Errors(inputs[name] * 0.0, inputs[name] * 0.0) for name in ("q", "k", "v")}
    names = ("q", "out", "lse", "dout", "dlse", "k", "v")
    given = {name: inputs[name] if name == "lse" else finite(inputs[name]) for name in names}
    found = by_heads(one, [given[name] for name in names[:5]], (given["k"], given["v"]), Sides.of(given["q"], inputs))
    heads = inputs["k"].shape[1]

    def added(largest: Any, typical: Any, reached: Any, size: Any) -> Errors:
        largest, typical, reached, size = (over_groups(tensor, heads) for tensor in (largest, typical, reached, size))
        group = largest.shape[2]
        # a sum over a group may go on from one head to the next, or add up what each of them gave
        carried = few_ulps(size.sum(dim=2), 2.0 * group, 1.0 * group) if group > 1 else Errors(0.0, 0.0)
        return Errors(largest.sum(dim=2), typical.square().sum(dim=2).sqrt(), reached.sum(dim=2)) + carried

    return {"dq": Errors(*found[:3]), "dk": added(*found[4:8]), "dv": added(*found[8:])}


def _spread(errors: Any, factors: Any) -> Any:
    """What independent errors [..., m, n] of the left factor make of a product with [..., n, k]: the root of the sum of
    squares.
    """
    return (errors.square() @ factors.square()).sqrt()


def _coincidence(values: Any, dtype: str) -> Any:
    """How much of the errors of a row, an axis of one, has one sign because its values are rounded alike: the root of
    the share of pairs that are one number in the dtype, of pairs that lie near each other.
    """
    # Veltkamp's splitting: the leading digits of a float64
    size = values.abs()
    moved = size * (2.0 ** (53 - DTYPES[dtype].significand) + 1)
    rounded = moved - (moved - size)
    there = rounded > 0
    pairs = sum((there & (rounded == rounded.roll(step, -1))).sum(dim=-1, keepdim=True) for step in NEAR)
    return (pairs / (len(NEAR) * there.sum(dim=-1, keepdim=True)).clamp(min=1)).sqrt()


def vanished(size: Any) -> Any:
    """What a GPU may lose of numbers of this size: those below float32's least normal number, twice that where errors
    bring them there, are 0.
    """
    return size.masked_fill(size > 2.0**-125, 0.0)


def _turned(matrix: Any) -> Any:
    return matrix.transpose(-1, -2)


@dataclass(frozen=True)
class _Off:
    """Weights times what dropout makes of them, gradients of scores, and what their arithmetic may do.

    parts   for the largest and the typical error: of weights; of gradients by themselves; and what their row shares
    high    how large the numbers are from which they are made
    """

    met: Any
    slopes: Any
    factor: Any
    parts: tuple[tuple[Any, Any, Any], ...]
    high: Any


def _off(
    q: Any,
    out: Any,
    lse: Any,
    dout: Any,
    dlse: Any,
    k: Any,
    v: Any,
    sides: Sides,
    *,
    scalars: Mapping[str, Any],
    dtype: str,
    capped: bool,
) -> _Off:
    """`capped`: the gradients are those of scores before the cap."""
    cut, made = dtype != "float32", slopes_of if capped else added_slopes_of
    scores, weights, slopes, kept = made(q, out, lse, dout, dlse, k, v, sides, scalars=scalars)
    factor = 1.0 if kept is None else kept
    hidden = (lse.unsqueeze(-1) == -float("inf")) | (scores == -float("inf"))
    lse = finite(lse).unsqueeze(-1)
    scores, weights, slopes = finite(scores), finite(weights), finite(slopes)
    of_score = score_errors(q, k, sides, dict(scalars), dtype)
    # of exp2's argument, a difference of two numbers in units of log(2)
    argument = EPSILON * (4 + 3 * (scores - lse).abs() + 2 * scores.abs() + 2 * lse.abs())
    of_inner = product_errors(dout, _turned(v), cut=cut).times(factor)
    of_middle = sum_errors(dout * out) + few_ulps(dlse.abs().unsqueeze(-1), 2.0, 1.0)
    inner = (dout @ _turned(v)) * factor
    middle = (dout * out).sum(dim=-1, keepdim=True) - dlse.unsqueeze(-1)
    difference, slack = (inner - middle).abs(), EPSILON * (inner.abs() + middle.abs())
    met = weights * factor
    exponent = scores - lse
    parts = []
    for off_score, off_inner, off_middle in (
        (of_score.largest + argument, of_inner.largest + 2 * slack, of_middle.largest),
        (of_score.typical + 0.4 * argument, of_inner.typical + slack, of_middle.typical),
    ):
        off = (exponent + off_score).clamp(max=STEEP).exp().masked_fill(hidden, 0.0) - weights
        # exponentials and products of a GPU are 0 below float32's least normal number: what that takes from a weight is
        # multiplied by as much as the weight is
        off = off.clamp(min=0.0) + vanished(weights)
        off_slope = off * (difference + off_inner) + weights * off_inner + 8 * EPSILON * slopes.abs()
        off_slope = off_slope + vanished(slopes.abs())
        parts.append((off, off_slope, weights * off_middle))
    beyond = (met.maximum(slopes.abs()) > DTYPES[dtype].largest / 4) | (
        (exponent + of_score.largest + argument > STEEP) & ~hidden
    )
    high = scores.abs() + inner.abs() * 4 + BEYOND * beyond.to(scores)
    return _Off(met, slopes, factor, tuple(parts), high)


def _errors(*given: Any, scalars: Mapping[str, Any], dtype: str) -> tuple[Any, ...]:
    """Of dq, dk and dv of each head of q: largest, typical, reached, and the size of what is added up."""
    q, dout, k = given[0], given[3], given[5]
    cut, half, scale = dtype != "float32", HALF_STEP[dtype], scale_of(q, dict(scalars))
    of = _off(*given, scalars=scalars, dtype=dtype, capped=True)
    met, slopes, factor, high = of.met, of.slopes, of.factor, of.high
    alike, parts = CUT if cut else 1 / 64, []
    for (off, off_slope, level), room, usual in zip(of.parts, (2.0, 1.0), (False, True), strict=True):

        def through(
            errors: Any, values: Any, shared: Any, factors: Any, room: float = room, usual: bool = usual
        ) -> Any:
            # each is rounded by up to half a step: independent ones by 0.4 of that, equal ones all to one side
            together = _coincidence(values, dtype)
            share, together = (0.5, together) if usual else (INDEPENDENT, (4 * together).clamp(max=1.0))
            rounded = half * (share * _spread(values, factors) + together * (values @ factors).abs())
            rounded = rounded.minimum(half * (values.abs() @ factors.abs()))
            lost = 2 * FLUSHED[dtype] * factors.square().sum(dim=-2, keepdim=True).sqrt()
            return room * _spread(errors, factors) + alike * (errors @ factors.abs()) + shared + rounded + lost

        parts.append(
            (
                abs(scale) * through(off_slope, slopes, (level @ k).abs(), k),
                abs(scale) * through(_turned(off_slope), _turned(slopes), 2 * _spread(_turned(level), q), q),
                through(_turned(off * factor), _turned(met), 0.0, dout),
            )
        )
    products = (
        product_errors(slopes, k, cut=cut).times(scale),
        product_errors(_turned(slopes), q, cut=cut).times(scale),
        product_errors(_turned(met), dout, cut=cut),
    )
    by_query, by_key = high.amax(dim=-1, keepdim=True), high.amax(dim=-2).unsqueeze(-1)
    result: list[Any] = []
    for place, (product, reached) in enumerate(zip(products, (by_query, by_key, by_key), strict=True)):
        largest = parts[0][place] + product.largest
        size = product.reached / 4
        result += [largest, parts[1][place] + product.typical, (product.reached + reached).expand(largest.shape), size]
    return tuple(result)
