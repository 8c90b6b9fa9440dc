"""Comparison: A against B, timed interleaved: the ratio, its evidence, and one of four outcomes."""

from __future__ import annotations

import math
from dataclasses import dataclass

FASTER, SLOWER, SAME, UNSURE = "FASTER", "SLOWER", "SAME", "UNSURE"
WORDS = (FASTER, SLOWER, SAME, UNSURE)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Candidate `a` against baseline `b` on one workload and dtype.

    outcome         FASTER, SLOWER or SAME, said of `a`; UNSURE where the pairs cannot tell
    ratio        median of time of a / time of b over the pairs: below 1, a is faster
    low, high    bootstrap interval of that median at `confidence`, of these pairs; what other processes would say is in
                 the outcome
    band         dead band: a ratio within 1/(1+band) .. 1+band is no difference
    p            sign test of "the median ratio lies inside the band", or the t test over the blocks' medians where
                 that is the larger; what corrections for many comparisons work on
    rank_p       Mann-Whitney on the two sets of samples, as a cross-check: it knows nothing of the pairs
    samples_a_s, samples_b_s   seconds per call, pair by pair, in the order taken
    blocks       pairs taken in each pair of processes, in order; () where all came from one
    notes        what a reader should know: a word taken back by a correction, clocks that differ, an unsteady side
    """

    a: str
    b: str
    workload: str
    dtype: str
    outcome: str
    ratio: float
    low: float
    high: float
    band: float
    confidence: float
    p: float
    rank_p: float
    samples_a_s: tuple[float, ...]
    samples_b_s: tuple[float, ...]
    spent_s: float
    notes: tuple[str, ...] = ()
    blocks: tuple[int, ...] = ()

    @property
    def speedup(self) -> float:
        """Time of b over time of a: above 1, a is faster."""
        return 1 / self.ratio if self.ratio > 0 else math.inf

    @property
    def pairs(self) -> int:
        """How many pairs were taken."""
        return len(self.samples_a_s)


@dataclass(frozen=True, kw_only=True)
class GeometricMean:
    """Geometric mean of the ratios of several comparisons, with its bootstrap interval; `word` as for a Comparison."""

    ratio: float
    low: float
    high: float
    outcome: str
    comparisons: int
