"""What attention is, for references and bounds: which keys a query sees, its scores, and how far 16 and 32 bits may be
off; on whatever has the methods of a tensor, so no library is imported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from opforge.core.definition.operator import Constraint, Scalar
from opforge.core.definition.rounding_errors import Errors
from opforge.definitions.attention.sides import DROPOUT, LIMITS_OF_DROPOUT, Sides
from opforge.definitions.bounds.fp8 import FP8_WEIGHTS, fp8_product_errors, fp8_weight_errors
from opforge.definitions.bounds.sums import EPSILON, few_ulps, finite, positive_sum, product_errors

PARAMETERS = (
    Scalar(name="scale", default=0.0, about="a factor of all scores; 0 means 1 / sqrt(head_dim)"),
    Scalar(name="causal", default=False, choices=(False, True), about="no key after the query's own position is seen"),
    Scalar(name="window_left", default=-1, about="how many keys before its position a query sees; -1: all of them"),
    Scalar(name="window_right", default=-1, about="how many keys after its position a query sees; -1: all of them"),
    Scalar(
        name="alignment",
        default="top_left",
        choices=("top_left", "bottom_right"),
        about="a query's position among the keys: query 0 stands at key 0, or the last query at the last key",
    ),
    Scalar(name="softcap", default=0.0, about="scores become softcap * tanh(score / softcap); 0: they stay"),
    *DROPOUT,
)

CONSTRAINTS = (
    Constraint(
        name="something_to_see",
        expression="keys >= 1 and head_dim >= 1 and value_dim >= 1",
        about="there is a key, and rows have elements",
    ),
    Constraint(
        name="windows_reach_out",
        expression="window_left >= -1 and window_right >= -1",
        about="a window reaches 0 or more keys to a side, or is -1",
    ),
    Constraint(name="softcap_caps", expression="softcap >= 0", about="a cap is above 0, or 0 for none"),
    *LIMITS_OF_DROPOUT,
)

TOGETHER = 2**25
"""Scores that are looked at together: 256 MB in float64."""


def _clipped(last: str) -> str:
    """The sum of min(t, keys) over t from 1 to `last`, as an expression."""
    most = f"min(max({last}, 0), keys)"
    return f"({most} * ({most} + 1) // 2 + (max({last}, 0) - {most}) * keys)"


def _pairs() -> str:
    shift = "((keys - queries) if alignment == 'bottom_right' else 0)"
    right = f"({shift} + (0 if causal else window_right))"
    left = f"({shift} - window_left - 1)"
    up_to = f"({_clipped(f'(queries + {right})')} - {_clipped(right)})"
    below = f"({_clipped(f'(queries + {left})')} - {_clipped(left)})"
    return f"(({up_to} if causal or window_right >= 0 else queries * keys) - ({below} if window_left >= 0 else 0))"


PAIRS = _pairs()
"""How many pairs of a query and a key are seen, of one head: an expression over axes and parameters."""


def scale_of(q: Any, scalars: dict[str, Any]) -> float:
    """The factor of the scores."""
    return scalars["scale"] or 1.0 / math.sqrt(q.shape[-1])


def for_heads(q: Any, shared: Any) -> Any:
    """Keys or values for every head of q: each of theirs stands for as many of q's, one after another."""
    return shared.repeat_interleave(q.shape[1] // shared.shape[1], dim=1) if shared.shape[1] else shared


def capped_of(q: Any, k: Any, scalars: dict[str, Any]) -> Any:
    """Products of q and k, which has q's heads, scaled and capped: [batch, heads, queries, keys]."""
    scores = (q @ k.transpose(-1, -2)) * scale_of(q, scalars)
    return scalars["softcap"] * (scores / scalars["softcap"]).tanh() if scalars["softcap"] > 0 else scores


def scores_of(q: Any, k: Any, sides: Sides, scalars: dict[str, Any]) -> Any:
    """The scores [batch, heads, queries, keys], -inf where a key is not seen; k has q's heads."""
    scores, added = capped_of(q, k, scalars), sides.added(q, k.shape[-2], scalars)
    if added is not None:
        scores = scores + added[0]
    return scores.masked_fill(~sides.visible(q, k.shape[-2], scalars), -math.inf)


def attended(q: Any, k: Any, v: Any, sides: Sides, scalars: dict[str, Any]) -> tuple[Any, Any]:
    """(out, lse); a row that sees nothing gives 0, and -inf or the logarithm of what its sink is."""
    scores, sunk = scores_of(q, for_heads(q, k), sides, scalars), sides.sunk()
    top = scores.detach().amax(dim=-1, keepdim=True)
    if sunk is not None:
        top = top.maximum(sunk.detach())
    top = top.masked_fill(top == -math.inf, 0.0)
    weights = (scores - top).exp()
    total = weights.sum(dim=-1, keepdim=True)
    if sunk is not None:
        total = total + (sunk - top).exp()
    nothing = total == 0
    total = total.masked_fill(nothing, 1.0)
    lse = (top + total.log()).masked_fill(nothing, -math.inf)
    weights, kept = weights / total, sides.kept(q, k.shape[-2], scalars)
    return (weights if kept is None else weights * kept) @ for_heads(q, v), lse.squeeze(-1)


def in_parts(
    function: Callable[..., Sequence[Any]], *tensors: Any, scalars: dict[str, Any], sides: Sides | None = None
) -> list[Any]:
    """`function(q, k, v, *others, sides, scalars)` on a part of the batch, the heads and the queries at a time, so that
    not all scores are in memory at once. `others` and results begin with q's batch, heads and queries. `sides` None:
    nothing is given beside them.
    """
    q, k, queries = tensors[0], tensors[1], tensors[0].shape[2]
    sides = sides or Sides.of(q, {})
    if q.shape[0] * q.shape[1] * queries * k.shape[2] <= TOGETHER:
        return list(function(*tensors, sides, scalars))
    group = q.shape[1] // k.shape[1]
    rows = max(1, TOGETHER // (group * k.shape[2]))
    whole: list[Any] = []
    for b in range(q.shape[0]):
        for h in range(k.shape[1]):
            heads = slice(h * group, (h + 1) * group)
            for first in range(0, queries, rows):
                part = (slice(b, b + 1), heads, slice(first, first + rows))
                given = (t[b : b + 1, h : h + 1] if place in (1, 2) else t[part] for place, t in enumerate(tensors))
                found = function(*given, sides.part(*part), scalars)
                if not whole:
                    whole = [piece.new_zeros((*q.shape[:3], *piece.shape[3:])) for piece in found]
                for result, piece in zip(whole, found, strict=True):
                    result[part] = piece
    return whole


def attention_errors(inputs: Any, outputs: Any, scalars: dict[str, Any], dtype: str) -> dict[str, Errors]:
    """Of out and lse. A score carries what its product and a few operations do, a weight exp(score - max) that as a
    relative error, and half a step of a 16-bit format, in which it meets v; the sums of weights and of weighted v have
    their own. An error that all weights of a row share moves out by nothing, so what counts is v's distance from out.

    A score of a key that is seen may leave float32, and so may the sum of weights of up to 1 times the values that are
    seen, which is divided afterwards: then an infinity or NaN is right.
    """
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    sliced = (q, k, v, outputs["out"], outputs["lse"])
    sides = Sides.of(q, inputs)
    found = in_parts(lambda *given: _errors(*given, dtype=dtype), *sliced, sides=sides, scalars=scalars)
    return {"out": Errors(*found[:3]), "lse": Errors(*found[3:])}


HALF_STEP = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""What rounding a factor that is made on the way to the dtype may cost, relative to it: half a step at a power of
two.
"""

INDEPENDENT = 3.0
"""In such half steps, times the root of the sum of squares: what independent roundings add up to at the most. One of
them has a standard deviation of 0.41 on average, so this is seven of theirs: of 10^8 elements none is beyond.
"""


def score_errors(q: Any, k: Any, sides: Sides, scalars: dict[str, Any], dtype: str) -> Errors:
    """Absolute errors of scores in float32, k having q's heads. exp2 takes them times log2(e), rounded. Products may be
    scaled before they are added up, or afterwards.
    """
    scale = scale_of(q, scalars)
    raw = product_errors(q * scale, k.transpose(-1, -2), cut=dtype != "float32")
    size = ((q @ k.transpose(-1, -2)) * scale).abs()
    of_cap = 4.0 * scalars["softcap"] if scalars["softcap"] > 0 else 0.0
    reached = raw.reached * max(1.0, 1.0 / abs(scale))
    found = Errors(raw.largest, raw.typical, reached) + few_ulps(size + of_cap, 3.0, 1.0)
    if dtype in FP8_WEIGHTS:
        # and the factors that the scales of q and k are
        found = found + fp8_product_errors(q * scale, k.transpose(-1, -2)) + few_ulps(size, 1.5, 0.7)
    added = sides.added(q, k.shape[-2], scalars)
    # each term is a product or two, and is added to what is there already
    return found if added is None else found + few_ulps(size + of_cap + added[1], 2.5, 1.0)


def _errors(
    q: Any, k: Any, v: Any, out: Any, lse: Any, sides: Sides, scalars: dict[str, Any], *, dtype: str
) -> tuple[Any, ...]:
    k, v = for_heads(q, k), for_heads(q, v)
    scores = scores_of(q, k, sides, scalars)
    weights = (scores - lse.unsqueeze(-1)).exp().nan_to_num(nan=0.0)
    seen = weights > 0
    top, sunk = scores.amax(dim=-1, keepdim=True), sides.sunk()
    distance = (top - scores).masked_fill(~seen, 0.0)
    of_score = score_errors(q, k, sides, scalars, dtype)
    large = weights * (of_score.largest + EPSILON * (4 + 3 * distance))
    usual = weights * (of_score.typical + EPSILON * (1.5 + distance))
    sum_large, sum_usual = positive_sum(k.shape[-2])
    kept = sides.kept(q, k.shape[-2], scalars)
    # what meets v: dropped weights are exactly 0, the others grow, by one more rounding of the whole sum
    met, factor = (weights, 1.0) if kept is None else (weights * kept, kept)
    size, squares = out.abs(), v.square()
    shared, usual_shared = large.sum(dim=-1, keepdim=True), usual.square().sum(dim=-1, keepdim=True)
    if sunk is not None:
        # the sink's part of the sum: its distance from the largest score is rounded, and sums are scaled once more
        part = (sunk - lse.unsqueeze(-1)).exp()
        gap = (sunk - top).abs().nan_to_num(posinf=0.0) + sunk.abs()
        shared = shared + part * EPSILON * (4 + 3 * gap) + 3 * EPSILON
        usual_shared = usual_shared + (part * EPSILON * (1.5 + gap) + EPSILON).square()
    carried = (large * factor) @ v.abs() + size * shared
    usual_carried = ((usual * factor).square() @ squares + out.square() * usual_shared).sqrt()
    products = product_errors(met, v, cut=dtype != "float32")
    # exponentials and products of a GPU are 0 below float32's least normal number
    vanishing = 2.0**-126 * (((weights < 2.0**-120) & seen).to(v) @ v.abs() + 1)
    # no chance is in that: where weights are lost, so much is missing, be it all that a key of large values gives
    usually_vanishing = weights.masked_fill(weights > 2.0**-125, 0.0) @ v.abs() + 2.0**-126
    if dtype in FP8_WEIGHTS:
        of_weights, usual_of_weights = fp8_weight_errors(met, v, dtype, INDEPENDENT)
    else:
        half = HALF_STEP[dtype]
        spread = (met.square() @ squares).sqrt()
        of_weights = half * (size + (INDEPENDENT * spread).minimum(met @ v.abs()))
        usual_of_weights = half * (0.5 * size + 0.6 * spread)
    if dtype == "float16":
        # weights below 2^-14 of the largest have steps of 2^-24 of it
        small = ((weights < 2.0**-14) & seen).to(v) * factor
        step = 2.0**-25 * weights.amax(dim=-1, keepdim=True) * (small.square() @ squares).sqrt()
        of_weights, usual_of_weights = of_weights + 2 * INDEPENDENT * step, usual_of_weights + 0.6 * step
    lse_size = lse.abs().nan_to_num(posinf=0.0) + top.squeeze(-1).abs().nan_to_num(posinf=0.0) + 1
    if sunk is not None:
        lse_size = lse_size + sunk.squeeze(-1).abs()
    # not `seen`: a weight may be 0 because a score left float32
    looked_at = scores != -math.inf
    highest = of_score.reached.masked_fill(~looked_at, 0.0).amax(dim=-1)
    # weights up to 1 before they are divided by their sum
    added_up = looked_at.to(v) @ finite(v).abs() * (1 / (1 - scalars["dropout"] or 1.0))
    return (
        carried
        + vanishing
        + products.largest
        + of_weights
        + (sum_large + 5 * EPSILON * (kept is not None) + 3 * EPSILON) * size,
        (usual_carried.square() + products.typical**2 + usual_of_weights.square()).sqrt()
        + (sum_usual + EPSILON) * size
        + usually_vanishing,
        added_up.maximum(highest.unsqueeze(-1)),
        shared.squeeze(-1) + sum_large + 3 * EPSILON * lse_size,
        usual_shared.sqrt().squeeze(-1) + sum_usual + EPSILON * lse_size,
        highest,
    )
