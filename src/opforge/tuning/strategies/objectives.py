"""Several objectives: the points that no other beats in all of them, and one score by weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Objectives = Mapping[str, float]
"""What a point costs, by name, each the less the better: "time" (s), "memory" (bytes), "energy" (J), "error"."""

WEIGHTS = {"time": 0.6, "memory": 0.3, "energy": 0.1}
"""The weights of the seed's tuner."""


def pareto_front(costs: Sequence[Objectives]) -> list[int]:
    """The places of those that no other beats: as good in every objective and better in one. In their order.

    An objective that a point lacks, or that is NaN, counts as infinitely bad.
    """
    names = sorted({name for cost in costs for name in cost})
    table = [[_known(cost, name) for name in names] for cost in costs]

    def beats(one: list[float], other: list[float]) -> bool:
        return one != other and all(mine <= its for mine, its in zip(one, other, strict=True))

    return [place for place, mine in enumerate(table) if not any(beats(other, mine) for other in table)]


def weighted_scores(costs: Sequence[Objectives], weights: Mapping[str, float] = WEIGHTS) -> list[float]:
    """A score from 0 to 1 for each, the more the better: the weighted mean of (the least cost of all / its cost).

    Relative to the least of all, because seconds and bytes have no common unit: a sum of 1 / time and 1 / bytes would
    be the first alone. Raises ValueError where no weight is above 0.
    """
    total = sum(weights.values())
    if not total > 0 or min(weights.values()) < 0:
        raise ValueError("The weights must be at least 0, and one of them above 0.")
    least = {name: min((_known(cost, name) for cost in costs), default=math.inf) for name in weights}

    def share(cost: Objectives, name: str) -> float:
        mine = _known(cost, name)
        if not math.isfinite(mine):
            return 0.0
        return 1.0 if mine == least[name] else least[name] / mine

    return [sum(weight * share(cost, name) for name, weight in weights.items()) / total for cost in costs]


def _known(cost: Objectives, name: str) -> float:
    value = cost.get(name, math.inf)
    return math.inf if math.isnan(value) else value
