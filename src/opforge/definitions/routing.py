"""Routing to experts: scores of each token, the k largest with their places, and the gradient of their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opforge.core.definition.operator import Case, Constraint, Scalar, Workload
from opforge.core.definition.rounding_errors import Errors
from opforge.definitions.bounds.sums import EPSILON, few_ulps, finite, positive_sum

SOURCE = "Lepikhin et al., GShard, arXiv:2006.16668, 2020; sigmoid scores as in DeepSeek-V3, arXiv:2412.19437, 2024"
FLUSHED = 2.0**-124
"""What lies below 2^-126 may be 0 before it is multiplied."""
SCORES = ("softmax", "sigmoid")
PARAMETERS = (
    Scalar(name="k", default=2, about="how many experts each token goes to"),
    Scalar(name="score", default="softmax", choices=SCORES, about="over all experts, or of each for itself"),
    Scalar(name="normalise", default=True, choices=(True, False), about="the k weights are divided by their sum"),
)
ENOUGH = Constraint(name="enough_experts", expression="k >= 1 and k <= experts", about="there are k to choose")
DERIVED = {"places": "k"}


def scores(logits: Any, score: str) -> Any:
    """Of every expert."""
    return logits.softmax(dim=-1) if score == "softmax" else logits.sigmoid()


def first_of_equals(logits: Any, k: int) -> Any:
    """The places of the k largest, the largest first; of equal ones the first."""
    return logits.sort(dim=-1, descending=True, stable=True).indices[..., :k]


def weights_of(logits: Any, chosen: Any, scalars: Mapping[str, Any]) -> Any:
    """The weights of the chosen experts. The sum of sigmoids is taken in units of exp(largest) where all are small, so
    that nothing vanishes.
    """
    if not scalars["normalise"]:
        return scores(logits, scalars["score"]).gather(-1, chosen)
    picked = logits.gather(-1, chosen)
    if scalars["score"] == "softmax":
        return picked.softmax(dim=-1)
    top = picked.amax(dim=-1, keepdim=True).clamp(max=0)
    size = (picked.clamp(max=0) - top).exp() / (1 + (-picked.abs()).exp())
    return size / size.sum(dim=-1, keepdim=True)


def relative_errors(logits: Any, chosen: Any, scalars: Mapping[str, Any]) -> Errors:
    """Of each chosen weight, in units of itself: an argument of exp carries an error of eps times its size."""
    x = finite(logits)
    far = (x - x.amax(dim=-1, keepdim=True)).abs() if scalars["score"] == "softmax" else x.abs()
    picked = far.gather(-1, chosen)
    if not scalars["normalise"] and scalars["score"] == "sigmoid":
        return few_ulps(5 + 3 * picked, 1.0, 0.4)
    over = far if not scalars["normalise"] else picked
    weights = scores(x, scalars["score"])
    weights = weights if not scalars["normalise"] else weights.gather(-1, chosen)
    share = weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-300)
    carried = (share * over).sum(dim=-1, keepdim=True)
    largest, typical = positive_sum(over.shape[-1])
    own = few_ulps(6 + 3 * picked, 1.0, 0.4)
    return own + Errors(largest + EPSILON * (3 + 3 * carried), typical + EPSILON * (1 + carried))


def forward_errors(logits: Any, outputs: Mapping[str, Any], scalars: Mapping[str, Any]) -> Errors:
    """Of the weights; what lies below 2^-126 may be 0."""
    found = relative_errors(logits, outputs["chosen"], scalars).times(finite(outputs["weights"]))
    return found + Errors(2.0**-125, 2.0**-125)


def gradients(logits: Any, chosen: Any, dweights: Any, scalars: Mapping[str, Any]) -> Any:
    """Of the logits; the places that were chosen have no gradient."""
    own, level, rest, _ = _parts(logits, chosen, dweights, scalars)
    if scalars["score"] == "softmax" and not scalars["normalise"]:
        everywhere = scores(logits, "softmax")
        return (-everywhere * level).scatter(-1, chosen, own * (dweights - level))
    return (0.0 * logits).nan_to_num(nan=0.0).scatter(-1, chosen, own * rest * (dweights - level))


def _parts(logits: Any, chosen: Any, dweights: Any, scalars: Mapping[str, Any]) -> tuple[Any, Any, Any, Any]:
    """Weights; the mean of what arrived by them, 0 for sigmoids for themselves; 1 - sigmoid; and the sizes of the terms
    of that mean.
    """
    own = weights_of(logits, chosen, scalars)
    single = scalars["score"] == "sigmoid" and not scalars["normalise"]
    terms = own * dweights
    level = terms.sum(dim=-1, keepdim=True) * (0.0 if single else 1.0)
    rest = (-logits.gather(-1, chosen)).sigmoid() if scalars["score"] == "sigmoid" else own.new_ones(())
    return own, level, rest, terms.abs()


def backward_errors(logits: Any, chosen: Any, dweights: Any, scalars: Mapping[str, Any]) -> Errors:
    """Of `gradients`."""
    own, level, rest, sizes = _parts(logits, chosen, dweights, scalars)
    relative = relative_errors(logits, chosen, scalars)
    inner = (dweights - level).abs()
    size = dweights.abs() + sizes.sum(dim=-1, keepdim=True)
    picked = []
    for part, ulps in ((relative.largest, 6.0), (relative.typical, 2.0)):
        of_level = (sizes * part).sum(dim=-1, keepdim=True) + ulps * EPSILON * sizes.sum(dim=-1, keepdim=True)
        # 1 - sigmoid may be that difference: eps beside 1
        picked.append(
            own * rest * (part * inner + of_level + ulps * EPSILON * size)
            + own * inner * EPSILON * (rest < 1)
            + FLUSHED * (1 + size)
        )
    if scalars["score"] == "softmax" and not scalars["normalise"]:
        x = finite(logits)
        far = (x - x.amax(dim=-1, keepdim=True)).abs()
        everywhere = x.softmax(dim=-1)
        carried = (everywhere * far).sum(dim=-1, keepdim=True)
        of_sum = positive_sum(x.shape[-1])
        whole = []
        for place, part in enumerate((relative.largest, relative.typical)):
            of_level = (sizes * (part + 6 * EPSILON)).sum(dim=-1, keepdim=True)
            soft = EPSILON * (9 + 3 * far + 3 * carried) + of_sum[place]
            whole.append(
                (everywhere * (soft * level.abs() + of_level) + FLUSHED * (1 + level.abs())).scatter(
                    -1, chosen, picked[place]
                )
            )
        return Errors(*whole)
    none = logits.new_zeros(logits.shape)
    return Errors(*(none.scatter(-1, chosen, part) for part in picked))


def routing_axes(lead: tuple[int, ...], experts: int) -> dict[str, int | tuple[int, ...]]:
    """The axes of a call."""
    return {"lead": lead, "experts": experts}


def _with(k: int, score: str = "softmax", normalise: bool = True) -> dict[str, int | str | bool]:
    return {"k": k, "score": score, "normalise": normalise}


CASES = (
    Case(name="one", axes=routing_axes((1,), 1), scalars=_with(1), why="one expert, whose weight is 1"),
    Case(name="mixtral", axes=routing_axes((37,), 8), scalars=_with(2), why="Mixtral: 2 of 8, normalised"),
    Case(name="all_of_them", axes=routing_axes((5,), 6), scalars=_with(6), why="every expert, sorted"),
    Case(name="qwen3", axes=routing_axes((3, 5), 128), scalars=_with(8), why="Qwen3: 8 of 128, two leading axes"),
    Case(
        name="deepseek",
        axes=routing_axes((9,), 256),
        scalars=_with(8, "sigmoid"),
        why="DeepSeek-V3: 8 of 256 by sigmoids, normalised",
    ),
    Case(
        name="olmoe", axes=routing_axes((11,), 64), scalars=_with(8, normalise=False), why="OLMoE: 8 of 64, as they are"
    ),
    Case(
        name="single_sigmoids",
        axes=routing_axes((13,), 16),
        scalars=_with(1, "sigmoid", False),
        why="Llama 4: one of 16 by its sigmoid",
    ),
    Case(name="odd", axes=routing_axes((7,), 61), scalars=_with(5, normalise=False), why="a prime number of experts"),
    Case(
        name="past_a_warp", axes=routing_axes((3,), 33), scalars=_with(3), why="one more expert than a warp has lanes"
    ),
    Case(name="many_experts", axes=routing_axes((2,), 1000), scalars=_with(10), why="nearly as many as are kept"),
    Case(
        name="ties",
        axes=routing_axes((33,), 24),
        scalars=_with(4),
        distribution="integers",
        why="many logits are equal: the first counts",
    ),
    Case(
        name="ties_of_sigmoids",
        axes=routing_axes((33,), 24),
        scalars=_with(4, "sigmoid"),
        distribution="constant_rows",
        why="all logits are equal",
    ),
    Case(
        name="large",
        axes=routing_axes((9,), 32),
        scalars=_with(4, normalise=False),
        distribution="large",
        why="exp overflows without the shift",
    ),
    Case(name="tiny", axes=routing_axes((9,), 32), scalars=_with(4), distribution="tiny", why="all weights are alike"),
    Case(name="empty", axes=routing_axes((0,), 8), scalars=_with(2), why="no token"),
    Case(name="scalar_rank", axes=routing_axes((), 16), scalars=_with(3), why="one token without an axis"),
    Case(
        name="sliced", axes=routing_axes((9,), 40), scalars=_with(2), layout="sliced", why="rows inside a wider matrix"
    ),
    Case(
        name="misaligned",
        axes=routing_axes((6,), 64),
        scalars=_with(4, "sigmoid"),
        layout="misaligned",
        why="16-byte loads would fault or read the neighbour",
    ),
)

VANISHING = Case(
    name="large_sigmoids",
    axes=routing_axes((40,), 3),
    scalars=_with(2, "sigmoid"),
    distribution="large",
    why="sigmoids that vanish in float32 still have a ratio",
)

WORKLOADS = (
    Workload(
        name="mixtral_8x7b_prompt",
        axes=routing_axes((4096,), 8),
        scalars=_with(2),
        source="Mixtral 8x7B: 2 of 8 experts, 4096 tokens",
        scale="laptop",
    ),
    Workload(
        name="qwen3_30b_prompt",
        axes=routing_axes((2048,), 128),
        scalars=_with(8),
        source="Qwen3 30B-A3B: 8 of 128 experts, 2048 tokens",
        scale="laptop",
    ),
    Workload(
        name="mixtral_8x7b",
        axes=routing_axes((65536,), 8),
        scalars=_with(2),
        source="Mixtral 8x7B: 2 of 8 experts, 65536 tokens",
    ),
    Workload(
        name="qwen3_235b",
        axes=routing_axes((32768,), 128),
        scalars=_with(8),
        source="Qwen3 235B-A22B: 8 of 128 experts, 32768 tokens",
    ),
    Workload(
        name="deepseek_v3",
        axes=routing_axes((32768,), 256),
        scalars=_with(8, "sigmoid"),
        source="DeepSeek-V3: 8 of 256 experts by sigmoids, without groups, 32768 tokens",
    ),
)


def _classes(scale: str, *shapes: tuple[int, int, int, str]) -> tuple[Workload, ...]:
    return tuple(
        Workload(
            name=f"{tokens}x{experts}_{k}_{score}",
            axes=routing_axes((tokens,), experts),
            scalars=_with(k, score),
            source="shape class: few and many experts, few and many tokens",
            scale=scale,
        )
        for tokens, experts, k, score in shapes
    )


GRID = (
    *_classes(
        "gpu", (32768, 8, 2, "softmax"), (16384, 128, 8, "softmax"), (256, 128, 8, "softmax"), (30001, 61, 6, "sigmoid")
    ),
    *_classes("laptop", (1024, 8, 2, "softmax"), (1024, 128, 8, "softmax"), (999, 61, 6, "sigmoid")),
)
