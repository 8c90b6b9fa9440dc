"""A against B: the outcome of two interleaved candidates, from their pairs of samples. Pure functions; nothing here
measures.

Per pair the logarithm of time of a / time of b is taken, so that what disturbs both sides of a pair cancels. The median
of these has a bootstrap interval (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3), and the
word comes from where that interval lies against a dead band around 1. How often that raises an alarm on identical code
is measured by `make trust`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, median, stdev
from typing import Any

from opforge.core.evidence.comparison import FASTER, SAME, SLOWER, UNSURE, Comparison, GeometricMean

RESAMPLES = 4000
"""Five resamples lie beyond each end of an interval of `Rule.look_confidence`, 99.75 %: fewer would make it an extreme
value, which jumps from seed to seed.
"""
CONTRADICTS = 0.01
"""The risk that a verdict may have: 1 - Rule.confidence."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How two sides are judged.

    band         dead band: ratios within 1/(1+band) .. 1+band are no difference
    confidence   of the verdict, all looks together
    looks        pairs after which the verdict is asked for; it ends at the first that is sure
    blocks       the same in blocks of pairs, each from two fresh processes: where equal processes lie apart by per
                 cents, more of them tell, and not more pairs from the same ones
    sample_s     the least duration of one sample. Short ones are better than many calls in one: on a busy machine a
                 longer sample is more often interrupted, and a median forgives the interrupted ones only while they are
                 few
    """

    band: float = 0.01
    confidence: float = 0.99
    looks: tuple[int, ...] = (30, 60, 120, 240)
    blocks: tuple[int, ...] = (4, 8, 16)
    sample_s: float = 0.25e-3

    @property
    def look_confidence(self) -> float:
        """The confidence of the interval at each look: the error is shared out over the looks (Bonferroni), so that
        looking four times does not mean four chances.

        >>> round(Rule().look_confidence, 6)
        0.9975
        """
        return 1 - (1 - self.confidence) / len(self.looks)

    @property
    def block_confidence(self) -> float:
        """The confidence of the interval over blocks at each look at them, shared out likewise."""
        return 1 - (1 - self.confidence) / len(self.blocks)


RULE = Rule()


def compare(
    a: str,
    b: str,
    samples_a_s: Sequence[float],
    samples_b_s: Sequence[float],
    *,
    rule: Rule = RULE,
    workload: str = "",
    dtype: str = "",
    spent_s: float = 0.0,
    blocks: Sequence[int] = (),
    seed: int = 0,
) -> Comparison:
    """The Comparison of side `a` with side `b` from paired samples (seconds per call, pair by pair).

    blocks how many of the pairs came from each pair of processes. Where memory lies differs between two processes of
           the same code and stays through each one's life: pairs of one block are no independent witnesses. FASTER and
           SLOWER need the t interval over the blocks' medians to leave out 1 too, and `p` is the worse of both tests'
    seed   of the bootstrap: the same pairs get the same verdict, whenever it is asked again from the record
    """
    if len(samples_a_s) != len(samples_b_s) or len(samples_a_s) < 5:
        raise ValueError(f"pairs are needed, five at least; got {len(samples_a_s)} and {len(samples_b_s)} samples")
    logs = [math.log(mine / other) for mine, other in zip(samples_a_s, samples_b_s, strict=True)]
    confidence = rule.look_confidence
    low, high = (math.exp(value) for value in bootstrap_median(logs, confidence, seed))
    outcome = place(low, high, rule.band)
    rank_p, direction = mann_whitney(samples_a_s, samples_b_s)
    notes: tuple[str, ...] = ()
    if outcome in (FASTER, SLOWER) and rank_p < CONTRADICTS and (direction > 0) != (outcome == SLOWER):
        outcome, notes = (
            UNSURE,
            (
                f"the rank test contradicts the pairs (p = {rank_p:.2g}): the machine changed while measuring; "
                "measure again",
            ),
        )
    p = sign_test(logs, math.log1p(rule.band))
    if len(blocks) > 1:
        least, most, chance = between_blocks(logs, blocks, rule.block_confidence)
        p = max(p, chance)
        if outcome in (FASTER, SLOWER) and least <= 1 <= most:
            outcome, notes = (
                UNSURE,
                (
                    *notes,
                    f"{outcome} over all pairs, but the {len(blocks)} pairs of processes say {least:.3f} to "
                    f"{most:.3f}: they do not agree; measure on a quieter machine, or with more --budget",
                ),
            )
    return Comparison(
        a=a,
        b=b,
        workload=workload,
        dtype=dtype,
        outcome=outcome,
        ratio=math.exp(median(logs)),
        low=low,
        high=high,
        band=rule.band,
        confidence=confidence,
        p=p,
        rank_p=rank_p,
        samples_a_s=tuple(samples_a_s),
        samples_b_s=tuple(samples_b_s),
        spent_s=spent_s,
        notes=notes,
        blocks=tuple(blocks),
    )


def between_blocks(logs: Sequence[float], blocks: Sequence[int], confidence: float) -> tuple[float, float, float]:
    """Student's t over the medians of two blocks or more: the interval of the ratio, and the two-sided p of "it is 1".

    >>> [round(value, 3) for value in between_blocks([0.04] * 4 + [0.06] * 4, [4, 4], 0.9)]
    [0.987, 1.12, 0.126]
    """
    starts = [sum(blocks[:place]) for place in range(len(blocks))]
    medians = [median(logs[start : start + count]) for start, count in zip(starts, blocks, strict=True)]
    centre, error = fmean(medians), stdev(medians) / math.sqrt(len(medians))
    half = student_quantile(1 - confidence, len(medians) - 1) * error
    p = student_p(abs(centre) / error, len(medians) - 1) if error > 0 else float(centre == 0)
    return math.exp(centre - half), math.exp(centre + half), p


def student_p(t: float, freedom: int) -> float:
    """Two-sided p of Student's t with whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4).

    >>> round(student_p(5.841, 3), 4), round(student_p(2.776, 4), 3)
    (0.01, 0.05)
    """
    angle = math.atan(t / math.sqrt(freedom))
    even = freedom % 2 == 0
    term, total = (1.0, 1.0) if even else (math.cos(angle), math.cos(angle) if freedom > 1 else 0.0)
    for place in range(2 if even else 3, freedom - 1, 2):
        term *= math.cos(angle) ** 2 * (place - 1) / place
        total += term
    inside = math.sin(angle) * total if even else 2 / math.pi * (angle + math.sin(angle) * total)
    return max(0.0, 1 - inside)


def student_quantile(p: float, freedom: int) -> float:
    """The t whose two-sided p this is.

    >>> round(student_quantile(0.01, 3), 3), round(student_quantile(0.005, 7), 3)
    (5.841, 4.029)
    """
    low, high = 0.0, 1.0
    while student_p(high, freedom) > p:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_p(middle, freedom) > p else (low, middle)
    return high


def compare_recorded(
    a: str,
    b: str,
    samples_a_s: Sequence[float],
    samples_b_s: Sequence[float],
    *,
    band: float,
    workload: str = "",
    dtype: str = "",
    seed: int = 0,
) -> Comparison:
    """The Comparison of two recordings that were not taken interleaved: for a baseline whose code cannot be run any
    more.

    Their order and the time between them are in the ratio, so `band` must be as wide as a machine drifts: 5 % here and
    not 1 %. p is the rank test's.
    """
    import numpy as np

    generator = np.random.default_rng(seed)
    mine, other = (np.log(np.asarray(samples)) for samples in (samples_a_s, samples_b_s))
    confidence = 0.99
    low, high = (
        math.exp(value)
        for value in _percentiles(
            _resampled_medians(mine, generator) - _resampled_medians(other, generator), confidence
        )
    )
    rank_p, _ = mann_whitney(samples_a_s, samples_b_s)
    return Comparison(
        a=a,
        b=b,
        workload=workload,
        dtype=dtype,
        outcome=place(low, high, band),
        ratio=median(samples_a_s) / median(samples_b_s),
        low=low,
        high=high,
        band=band,
        confidence=confidence,
        p=rank_p,
        rank_p=rank_p,
        samples_a_s=tuple(samples_a_s),
        samples_b_s=tuple(samples_b_s),
        spent_s=0.0,
        notes=("the two were not measured interleaved: what lies between the two recordings is in the ratio",),
    )


def place(low: float, high: float, band: float) -> str:
    """The word for an interval of time ratios against a dead band.

    >>> place(1.02, 1.06, 0.01), place(0.95, 0.98, 0.01), place(0.995, 1.004, 0.01), place(1.0, 1.05, 0.01)
    ('SLOWER', 'FASTER', 'SAME', 'UNSURE')
    """
    if low > 1 + band:
        return SLOWER
    if high < 1 / (1 + band):
        return FASTER
    return SAME if low >= 1 / (1 + band) and high <= 1 + band else UNSURE


def bootstrap_median(values: Sequence[float], confidence: float, seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap interval of the median."""
    import numpy as np

    return _percentiles(_resampled_medians(np.asarray(values), np.random.default_rng(seed)), confidence)


def sign_test(logs: Sequence[float], edge: float) -> float:
    """Two-sided p of "the median of these logs lies within -edge .. edge", exact (binomial), on the side it is seen on.

    >>> round(sign_test([0.05] * 10, 0.01), 4), sign_test([0.001, -0.001] * 5, 0.01)
    (0.002, 1.0)
    """
    n = len(logs)
    beyond = max(sum(value > edge for value in logs), sum(value < -edge for value in logs))
    if 2 * beyond <= n:
        return 1.0
    tail = sum(math.comb(n, k) for k in range(beyond, n + 1))
    return min(1.0, float(2 * tail / 2**n))


def mann_whitney(a: Sequence[float], b: Sequence[float]) -> tuple[float, int]:
    """Two-sided p of the Mann-Whitney test (normal approximation, ties corrected), and 1 where a tends to be larger,
    else -1.
    """
    merged = sorted([(value, 0) for value in a] + [(value, 1) for value in b])
    n, m = len(a), len(b)
    rank_sum, ties, start = 0.0, 0.0, 0
    while start < n + m:
        end = start
        while end < n + m and merged[end][0] == merged[start][0]:
            end += 1
        rank = (start + end + 1) / 2
        rank_sum += rank * sum(side == 0 for _, side in merged[start:end])
        ties += (end - start) ** 3 - (end - start)
        start = end
    u = rank_sum - n * (n + 1) / 2
    centre = n * m / 2
    variance = n * m / 12 * (n + m + 1 - ties / ((n + m) * (n + m - 1)))
    direction = 1 if u > centre else -1
    if variance <= 0:
        return 1.0, direction
    z = max(0.0, abs(u - centre) - 0.5) / math.sqrt(variance)
    return min(1.0, 2 * (1 - NormalDist().cdf(z))), direction


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's step-down adjustment (Scand. J. Statist. 6, 1979): each p as if it had been the only one.

    >>> holm([0.01, 0.04, 0.03])
    (0.03, 0.06, 0.06)
    """
    count, reached = len(p_values), 0.0
    adjusted = [0.0] * count
    for rank, position in enumerate(sorted(range(count), key=lambda position: p_values[position])):
        reached = max(reached, min(1.0, (count - rank) * p_values[position]))
        adjusted[position] = reached
    return tuple(adjusted)


def corrected(comparisons: Sequence[Comparison], alpha: float = 0.01) -> tuple[Comparison, ...]:
    """The comparisons with FASTER and SLOWER taken back to UNSURE where they do not outlast Holm's correction for their
    number.
    """
    adjusted = []
    for comparison, p in zip(comparisons, holm([comparison.p for comparison in comparisons]), strict=True):
        if comparison.outcome in (FASTER, SLOWER) and p > alpha:
            note = (
                f"{comparison.outcome} alone, but not among {len(comparisons)} comparisons (Holm p = {p:.2g}); "
                "ask for this workload alone to settle it"
            )
            comparison = replace(comparison, outcome=UNSURE, notes=(*comparison.notes, note))
        adjusted.append(comparison)
    return tuple(adjusted)


def geometric_mean(
    comparisons: Sequence[Comparison], *, band: float = 0.01, confidence: float = 0.99, seed: int = 0
) -> GeometricMean:
    """The geometric mean of the ratios, each resampled from its own pairs, and its word.

    Raises ValueError for no comparison at all.
    """
    import numpy as np

    if not comparisons:
        raise ValueError("there is nothing to take the mean of")
    generator = np.random.default_rng(seed)
    sides = [(np.asarray(comparison.samples_a_s), np.asarray(comparison.samples_b_s)) for comparison in comparisons]
    means = sum(_resampled_medians(np.log(a / b), generator) for a, b in sides) / len(sides)
    low, high = (math.exp(value) for value in _percentiles(means, confidence))
    ratio = math.exp(fmean(math.log(comparison.ratio) for comparison in comparisons))
    return GeometricMean(ratio=ratio, low=low, high=high, outcome=place(low, high, band), comparisons=len(comparisons))


def sentence(comparison: Comparison) -> str:
    """The verdict for a reader: what, by how much, how sure."""
    interval = (
        f"{100 * comparison.confidence:g} % interval {comparison.low:.3f} to {comparison.high:.3f}, "
        f"{comparison.pairs} pairs"
    )
    return (
        f"{comparison.outcome}: {comparison.a} takes {comparison.ratio:.3f} times as long as {comparison.b} "
        f"({interval})"
    )


def _resampled_medians(values: Any, generator: Any) -> Any:
    import numpy as np

    return np.median(values[generator.integers(0, len(values), (RESAMPLES, len(values)))], axis=1)


def _percentiles(values: Any, confidence: float) -> tuple[float, float]:
    import numpy as np

    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
