"""Order statistics of samples: what a set of times says without assuming how they are distributed. Pure Python, no
dependency.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev

FENCE = 3.0
"""Interquartile ranges beyond the quartiles from which a sample is an outlier (Tukey's outer fence)."""

SEPARATION = 5.0
LEAST_SHARE = 0.1
LEAST_GAP = 0.02
"""Two modes: Ashman's D between the halves of the best split, the smaller half's share, and the distance of their
medians.

The best split of one normal distribution has D = 2.7 and of a uniform one 3.5; 5 keeps clear of both with 30 samples.
"""


def quantile(samples: Sequence[float], q: float) -> float:
    """The q-quantile, linear between order statistics.

    >>> quantile([1.0, 2.0, 3.0, 4.0], 0.5)
    2.5
    """
    ordered = sorted(samples)
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def median_interval(samples: Sequence[float], z: float = 1.96) -> tuple[float, float]:
    """An interval for the median from order statistics, 95 % by default, assuming nothing of the distribution
    (Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2)."""
    ordered = sorted(samples)
    n = len(ordered)
    half = z * math.sqrt(n) / 2
    low = max(0, math.floor(n / 2 - half))
    high = min(n - 1, math.ceil(n / 2 + half) - 1)
    return ordered[low], ordered[max(low, high)]


def outliers(samples: Sequence[float]) -> tuple[int, ...]:
    """Positions of samples beyond Tukey's outer fences, in the order taken. They are reported, never dropped.

    >>> outliers([1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 9.0])
    (6,)
    """
    low, high = quantile(samples, 0.25), quantile(samples, 0.75)
    reach = FENCE * (high - low)
    return tuple(position for position, sample in enumerate(samples) if sample < low - reach or sample > high + reach)


@dataclass(frozen=True, kw_only=True)
class Mode:
    """One of several speeds that a kernel ran at: its median in seconds and the share of samples near it."""

    median_s: float
    share: float


def modes(samples: Sequence[float]) -> tuple[Mode, ...]:
    """One Mode, or two where the samples fall into two groups that one distribution does not explain.

    The split is the one with the largest variance between groups (Otsu, IEEE Trans. SMC 9, 1979), on logarithms with
    a twentieth at each end left out; it counts when Ashman's D (Astron. J. 108, 1994) and the groups' sizes and
    distance say so. Fewer than 30 samples are one Mode.
    """
    whole = Mode(median_s=median(samples), share=1.0)
    every = sorted(math.log(sample) for sample in samples if sample > 0)
    tail = len(every) // 20
    logs = every[tail : len(every) - tail]
    n = len(logs)
    if len(every) < 30 or logs[0] == logs[-1]:
        return (whole,)
    total, left, best, cut = sum(logs), 0.0, -1.0, 0
    for count in range(1, n):
        left += logs[count - 1]
        between = count * (n - count) * (left / count - (total - left) / (n - count)) ** 2
        if between > best:
            best, cut = between, count
    low, high = logs[:cut], logs[cut:]
    spread = math.hypot(pstdev(low), pstdev(high))
    distance = fmean(high) - fmean(low)
    if min(cut, n - cut) < LEAST_SHARE * n or distance < LEAST_GAP or math.sqrt(2) * distance < SEPARATION * spread:
        return (whole,)
    return tuple(Mode(median_s=math.exp(median(part)), share=len(part) / n) for part in (low, high))


def drift(samples: Sequence[float]) -> float:
    """How far the second half's median lies from the first half's, as a fraction; 0.0 where their 99 % intervals
    overlap.

    >>> drift([1.0] * 10 + [1.5] * 10), drift([1.0, 1.1] * 10)
    (0.5, 0.0)
    """
    half = len(samples) // 2
    if half < 8:
        return 0.0
    first, second = samples[:half], samples[half:]
    (low_1, high_1), (low_2, high_2) = median_interval(first, 2.58), median_interval(second, 2.58)
    return median(second) / median(first) - 1 if high_1 < low_2 or high_2 < low_1 else 0.0
