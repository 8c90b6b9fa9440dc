"""The ratio of two times that were taken turn about: what slowed both down in one turn is in neither's favour."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from statistics import median

from opforge.core.evidence import statistics
from opforge.core.evidence.timing import MOSTLY, Timing

TURNS = 8
"""Turns of each side from which on they are compared one by one: the interval of fewer is their whole range."""

WITHIN = 0.05
"""How far a bound of the interval may lie from the ratio: what `make trust` allows a time to be wrong by."""


@dataclass(frozen=True, kw_only=True)
class PairedRatio:
    """The median over turns of one time over another, with its 95 % interval."""

    value: float
    low: float
    high: float
    turns: int

    @property
    def narrow(self) -> bool:
        """Whether the interval says the ratio to within WITHIN."""
        return self.low >= self.value * (1 - WITHIN) and self.high <= self.value * (1 + WITHIN)


def by_turns(timing: Timing) -> list[float]:
    """The median of each turn's samples, seconds; [] where it is not kept which sample is of which turn."""
    if not timing.rounds or sum(turn.samples for turn in timing.rounds) != len(timing.samples_s):
        return []
    samples = iter(timing.samples_s)
    return [median(islice(samples, turn.samples)) for turn in timing.rounds]


def paired(one: Timing, other: Timing) -> PairedRatio | None:
    """`one` / `other`, turn by turn; None where fewer than TURNS of either are known. Both are of one measurement: the
    n-th turns of all that take part are neighbours (timing.measure).
    """
    pairs = list(zip(by_turns(one), by_turns(other), strict=False))
    if len(pairs) < TURNS:
        return None
    ratios = [first / second for first, second in pairs]
    low, high = statistics.median_interval(ratios)
    return PairedRatio(value=median(ratios), low=low, high=high, turns=len(ratios))


def ratio(one: Timing, other: Timing) -> float:
    """`one` / `other`: turn by turn where turns are known, else of the medians."""
    found = paired(one, other)
    return found.value if found is not None else one.median_s / other.median_s


def certain(one: Timing, other: Timing) -> bool:
    """Whether their ratio may be told. Both were steady; or the machine's speed changed under both, and turn by turn
    the ratio is known all the same. Never where something else had the processors in most turns of one.
    """
    if one.steady and other.steady:
        return True
    if max(one.disturbed, other.disturbed) > MOSTLY:
        return False
    found = paired(one, other)
    return found is not None and found.narrow
