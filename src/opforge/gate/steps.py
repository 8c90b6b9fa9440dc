"""Change points: where a noisy series steps from one level to another.

A piecewise constant function is fitted to the series: the sum of weighted absolute deviations plus a price for every
step is least (the L1 Potts problem; Storath, Weinmann and Demaret, "Jump-sparse and sparse recovery using Potts
functionals", IEEE Trans. Signal Processing 62, 2014). Absolute deviations forgive single spikes. The fit for each number
of steps is exact, by dynamic programming over segments; the number is chosen by an information criterion as asv does it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

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


class _RunningMedian:
    """Weighted median and weighted sum of absolute deviations from it, of a set that only grows."""

    def __init__(self) -> None:
        self.low: list[tuple[float, float]] = []
        self.high: list[tuple[float, float]] = []
        self.low_weight = self.high_weight = self.low_sum = self.high_sum = 0.0

    def add(self, value: float, weight: float) -> None:
        if self.low and value > -self.low[0][0]:
            heapq.heappush(self.high, (value, weight))
            self.high_weight += weight
            self.high_sum += weight * value
        else:
            heapq.heappush(self.low, (-value, weight))
            self.low_weight += weight
            self.low_sum += weight * value
        while self.high and self.low_weight < self.high_weight:
            value, weight = heapq.heappop(self.high)
            heapq.heappush(self.low, (-value, weight))
            self._move(value, weight)
        while len(self.low) > 1 and self.low_weight - self.low[0][1] >= self.high_weight + self.low[0][1]:
            negative, weight = heapq.heappop(self.low)
            heapq.heappush(self.high, (-negative, weight))
            self._move(-negative, -weight)

    def _move(self, value: float, weight: float) -> None:
        self.low_weight += weight
        self.high_weight -= weight
        self.low_sum += weight * value
        self.high_sum -= weight * value

    @property
    def level(self) -> float:
        return -self.low[0][0]

    @property
    def deviation(self) -> float:
        level = self.level
        return max(0.0, level * self.low_weight - self.low_sum + self.high_sum - level * self.high_weight)


def segments(values: Sequence[float], weights: Sequence[float] | None = None, *, smallest: float = 0.0) -> tuple[Segment, ...]:
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
        found = _levels(y, w, cuts)
        steps = [abs(after.level - before.level) for before, after in itertools.pairwise(found)]
        if not steps or min(steps) >= max(smallest, 1e-300):
            break
        del cuts[steps.index(min(steps))]
    return tuple(Segment(start=part.start + skipped if part.start else 0, end=part.end + skipped, level=part.level) for part in found)


def _best_cuts(y: Sequence[float], w: Sequence[float]) -> list[int]:
    """Where to cut, for the number of cuts with the least criterion: log of the mean deviation + PENALTY ln(n) / n for each cut."""
    import numpy as np

    n = len(y)
    cost = np.array(_costs(y, w))
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


def _costs(y: Sequence[float], w: Sequence[float]) -> list[list[float]]:
    """cost[start][end]: weighted absolute deviation of y[start:end] from its median; infinite below LEAST_SEGMENT points."""
    n = len(y)
    cost = [[math.inf] * (n + 1) for _ in range(n)]
    for start in range(n):
        running = _RunningMedian()
        for end in range(start + 1, n + 1):
            running.add(y[end - 1], w[end - 1])
            if end - start >= LEAST_SEGMENT:
                cost[start][end] = running.deviation
    if n < LEAST_SEGMENT:
        cost[0][n] = 0.0
    return cost


def _levels(y: Sequence[float], w: Sequence[float], cuts: Sequence[int]) -> list[Segment]:
    found = []
    edges = [0, *cuts, len(y)]
    for start, end in itertools.pairwise(edges):
        running = _RunningMedian()
        for position in range(start, end):
            running.add(y[position], w[position])
        found.append(Segment(start=start, end=end, level=running.level))
    return found
