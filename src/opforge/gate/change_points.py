"""Change points: where a noisy series steps from one level to another.

A piecewise constant function is fitted to the series: the sum of weighted absolute deviations plus a price for every
step is least (the L1 Potts problem; Storath, Weinmann and Demaret, "Jump-sparse and sparse recovery using Potts
functionals", IEEE Trans. Signal Processing 62, 2014). Absolute deviations forgive single spikes. The fit for each
number of steps is exact, by dynamic programming over segments; the number is chosen by an information criterion as asv
does it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LEAST_SEGMENT = 3
LONGEST = 256
"""Points that are looked at: the time to fit them grows with their square, and nobody waits for a history."""
MOST_STEPS = 12
PENALTY = 4.0


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Points `start` up to, not including, `end`, and their weighted median."""

    start: int
    end: int
    level: float


def segments(
    values: Sequence[float], weights: Sequence[float] | None = None, *, smallest: float = 0.0
) -> tuple[Segment, ...]:
    """The levels of a series, in order; one Segment where nothing steps.

    values     e.g. logarithms of medians; only the last LONGEST are looked at, what lies before joins the first segment
    weights    how far each point is trusted, e.g. 1 / width of its interval; equal by default
    smallest   a step less than this (in the values' unit) is no step

    A segment has LEAST_SEGMENT points at least: fewer are spikes until more follow.

    >>> [(part.start, part.end, part.level) for part in segments([1.0, 1.1, 1.0, 0.9, 1.0, 2.0, 2.1, 2.0, 1.9, 2.0])]
    [(0, 5, 1.0), (5, 10, 2.0)]
    """
    skipped = max(0, len(values) - LONGEST)
    y = list(values[skipped:])
    w = list(weights[skipped:]) if weights is not None else [1.0] * len(y)
    if not y:
        return ()
    scale = sum(w) / len(w)
    w = [weight / scale for weight in w]
    cuts = _best_cuts(y, w)
    while True:
        levels = _levels(y, w, cuts)
        steps = [abs(after.level - before.level) for before, after in itertools.pairwise(levels)]
        if not steps or min(steps) >= max(smallest, 1e-300):
            break
        del cuts[steps.index(min(steps))]
    return tuple(
        Segment(start=part.start + skipped if part.start else 0, end=part.end + skipped, level=part.level)
        for part in levels
    )


def _best_cuts(y: Sequence[float], w: Sequence[float]) -> list[int]:
    """Where to cut, for the number of cuts with the least criterion: log of the mean deviation + PENALTY ln(n) / n for
    each cut.
    """
    import numpy as np

    n = len(y)
    cost = _costs(y, w)
    most = min(MOST_STEPS, n // LEAST_SEGMENT - 1)
    # what rounding to a clock's step or to a few digits leaves; a series without noise must not be cut at every digit
    floor = 1e-6 * n * max(1e-12, sum(abs(value) for value in y) / n)
    best = cost[0].copy()
    origins: list[list[int]] = []
    chosen, chosen_score = 0, math.log(best[n] + floor)
    for steps in range(1, most + 1):
        # the best way to each end over every start of the last segment; a segment that is too short costs infinity
        totals = best[:n, None] + cost
        totals[: steps * LEAST_SEGMENT] = math.inf
        origin = totals.argmin(axis=0)
        best = totals[origin, np.arange(n + 1)]
        origins.append(origin.tolist())
        score = math.log(best[n] + floor) + steps * PENALTY * math.log(n) / n
        if score < chosen_score:
            chosen, chosen_score = steps, score
        elif steps >= chosen + 3:
            break
    cuts: list[int] = []
    end = n
    for origin in reversed(origins[:chosen]):
        end = origin[end]
        cuts.append(end)
    return cuts[::-1]


def _costs(y: Sequence[float], w: Sequence[float]) -> Any:
    """cost[start, end]: weighted absolute deviation of y[start:end] from its median; infinite below LEAST_SEGMENT
    points.

    The median is the level with the least deviation, and one of the values is a median: so it is the least over all
    values.
    """
    import numpy as np

    n = len(y)
    values, weights = np.asarray(y), np.asarray(w)
    cost, deviation, sums = np.full((n, n + 1), np.inf), np.empty((n, n + 1)), np.zeros(n + 1)
    for level in np.unique(values):
        np.cumsum(weights * np.abs(values - level), out=sums[1:])
        np.subtract(sums[None, :], sums[:n, None], out=deviation)
        np.minimum(cost, deviation, out=cost)
    start, end = np.ogrid[:n, : n + 1]
    # rounding may leave a little less than nothing
    cost = np.where(end - start < LEAST_SEGMENT, np.inf, np.maximum(cost, 0.0))
    if n < LEAST_SEGMENT:
        cost[0, n] = 0.0
    return cost


def _levels(y: Sequence[float], w: Sequence[float], cuts: Sequence[int]) -> list[Segment]:
    return [
        Segment(start=start, end=end, level=_weighted_median(y[start:end], w[start:end]))
        for start, end in itertools.pairwise([0, *cuts, len(y)])
    ]


def _weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    """The least value that has half of the weight at or below it.

    >>> _weighted_median([3.0, 1.0, 2.0], [1.0, 1.0, 1.0]), _weighted_median([1.0, 9.0], [1.0, 5.0])
    (2.0, 9.0)
    """
    pairs = sorted(zip(values, weights, strict=True))
    sums = list(itertools.accumulate(weight for _, weight in pairs))
    return next(value for (value, _), reached in zip(pairs, sums, strict=True) if 2 * reached >= sums[-1] * (1 - 1e-12))
