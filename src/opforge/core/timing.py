"""Timing: every raw sample, and the statistics that are derived from them when asked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, median, pstdev

from opforge.core import statistics, units
from opforge.core.statistics import Mode

UNSTEADY = 0.1
"""Interquartile range over median from which a timing is called unsteady."""

DRIFT = 0.03
"""Change of the median from the first half to the second from which a timing is called drifting."""


COARSE = 0.01
"""Share of a sample from which the clock's step is mentioned."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The state of the machine at one moment of measuring; None where it cannot be read.

    at_s       seconds since measuring began
    load       runnable processes, averaged over the last minute
    cpu_mhz    clock of the first processor
    stolen     share of processor time since the last moment that a hypervisor gave to others
    sm_mhz, temperature_c, power_w, energy_j (since the driver was loaded), throttled (the driver's reasons)   of the device
    """

    at_s: float
    load: float | None = None
    cpu_mhz: float | None = None
    stolen: float | None = None
    sm_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    throttled: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What a clock saw.

    samples_s     seconds per call, one per sample, in the order taken; a sample is `batch` calls divided by `batch`
    timer         which clock: "host", "cuda_event", "cuda_graph", "cupti"
    cache         "warm": inputs as the last call left them; "cold": in no cache of the device when the call starts
    overhead_s    the same loop around an empty kernel, per call; stated, never subtracted
    conditions    what was seen around the run, in words (threads, clocks, load), for the reader
    resolution_s  the clock's smallest step, seconds (0.0 where it was not measured)
    launch_s      what the host spends to start one call, seconds; None where the clock is the host's own
    seen_by       median seconds per call of the clocks that were tried before one was chosen, by timer
    moments       the machine's state around the rounds of samples
    extra_bytes   memory one call took beyond its inputs and outputs, at its peak (of an implementation that allocates its
                  outputs, those too); None where it could not be told
    suspect       why this timing cannot be true (faster than the device was measured to be), with what to do; None when it can
    """

    samples_s: tuple[float, ...]
    batch: int
    timer: str
    cache: str
    overhead_s: float
    conditions: tuple[str, ...]
    resolution_s: float = 0.0
    launch_s: float | None = None
    seen_by: Mapping[str, float] = field(default_factory=dict)
    moments: tuple[Moment, ...] = ()
    extra_bytes: int | None = None
    suspect: str | None = None

    @property
    def median_s(self) -> float:
        """The median sample."""
        return median(self.samples_s)

    def quantile_s(self, q: float) -> float:
        """The q-quantile of the samples, linear between order statistics."""
        return statistics.quantile(self.samples_s, q)

    @property
    def p50_p90_p99_s(self) -> tuple[float, float, float]:
        """The three quantiles that a reader asks for first."""
        return self.quantile_s(0.5), self.quantile_s(0.9), self.quantile_s(0.99)

    @property
    def iqr_s(self) -> float:
        """Interquartile range, seconds."""
        return self.quantile_s(0.75) - self.quantile_s(0.25)

    @property
    def spread(self) -> float:
        """Interquartile range over the median: 0.02 is steady, above 0.1 is not."""
        return self.iqr_s / self.median_s if self.median_s > 0 else math.inf

    @property
    def rsd(self) -> float:
        """Relative standard deviation, outliers and all."""
        mean = fmean(self.samples_s)
        return pstdev(self.samples_s) / mean if mean > 0 else math.inf

    @property
    def interval_s(self) -> tuple[float, float]:
        """A 95 % interval for the median from order statistics, assuming nothing of the distribution
        (Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2)."""
        return statistics.median_interval(self.samples_s)

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The speeds the kernel ran at: one, or two where the samples fall into two groups."""
        return statistics.modes(self.samples_s)

    @property
    def outliers(self) -> tuple[int, ...]:
        """Positions of the samples far outside the others (Tukey's outer fences). They count in every statistic above."""
        return statistics.outliers(self.samples_s)

    @property
    def unsteady(self) -> tuple[str, ...]:
        """What is wrong with these samples, in sentences that end with what to do; () for a steady timing."""
        found = []
        several = self.modes
        if len(several) == 2:
            slow, fast = several[1], several[0]
            remedy = "fix the threads (OMP_PROC_BIND=close) and let nothing else run" if self.timer == "host" else "fix the clocks (nvidia-smi -lgc MHZ)"
            found.append(
                f"unsteady: two speeds, {units.seconds(fast.median_s)} ({units.percent(fast.share)} of samples) and {units.seconds(slow.median_s)} "
                f"({units.percent(slow.share)}); {remedy} and look which one stays"
            )
        moved = statistics.drift(self.samples_s)
        if abs(moved) > DRIFT:
            word, remedy = ("slower", "the machine may be heating up or others began to work") if moved > 0 else ("faster", "it was still warming up")
            found.append(f"unsteady: {units.percent(abs(moved))} {word} in the second half; {remedy}: measure again with twice the --budget")
        if not found and not self.spread <= UNSTEADY:
            found.append(f"unsteady: samples spread over {units.percent(self.spread)} of the median; measure again with twice the --budget, on a quieter machine")
        share = self.resolution_s / (self.median_s * self.batch) if self.median_s > 0 else math.inf
        if share > COARSE:
            found.append(f"coarse: the clock's step of {units.seconds(self.resolution_s)} is {units.percent(share)} of a sample; use a larger workload")
        return tuple(found)
