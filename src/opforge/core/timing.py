"""Timing: every raw sample, and the statistics that are derived from them when asked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What a clock saw.

    samples_s    seconds per call, one per sample, in the order taken; a sample is `batch` calls divided by `batch`
    timer        which clock: "host", "cuda_event", "cuda_graph"
    cache        "warm": inputs as the last call left them; "cold": last-level cache flushed before every sample
    overhead_s   the same loop around an empty kernel, per call; stated, never subtracted
    conditions   what was seen around the run, in words (threads, clocks, load), for the reader
    """

    samples_s: tuple[float, ...]
    batch: int
    timer: str
    cache: str
    overhead_s: float
    conditions: tuple[str, ...]

    @property
    def median_s(self) -> float:
        """The median sample."""
        return median(self.samples_s)

    def quantile_s(self, q: float) -> float:
        """The q-quantile of the samples, linear between order statistics."""
        ordered = sorted(self.samples_s)
        position = q * (len(ordered) - 1)
        low = math.floor(position)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (position - low) * (ordered[high] - ordered[low])

    @property
    def spread(self) -> float:
        """Interquartile range over the median: 0.02 is steady, above 0.1 is not."""
        return (self.quantile_s(0.75) - self.quantile_s(0.25)) / self.median_s if self.median_s > 0 else math.inf

    @property
    def interval_s(self) -> tuple[float, float]:
        """A 95 % interval for the median from order statistics, assuming nothing of the distribution
        (Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2)."""
        ordered = sorted(self.samples_s)
        n = len(ordered)
        half = 1.96 * math.sqrt(n) / 2
        low = max(0, math.floor(n / 2 - half))
        high = min(n - 1, math.ceil(n / 2 + half) - 1)
        return ordered[low], ordered[max(low, high)]
