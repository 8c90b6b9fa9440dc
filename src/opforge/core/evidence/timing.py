"""Timing: every raw sample, and the statistics that are derived from them when asked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, median, pstdev

from opforge.core.evidence import statistics
from opforge.core.evidence.statistics import Mode
from opforge.core.language import units
from opforge.core.language.added_fields import ADDED

UNSTEADY = 0.1
"""Interquartile range over median from which a timing is called unsteady."""

UNSTEADY_WORD = "unsteady"

DRIFT = 0.03
"""Change of the median from the first half to the second from which a timing is called drifting."""


DISTURBED = 0.05
"""Share of a round in which its threads waited for a processor, from which the round is called disturbed: what `make
trust` allows a time to be wrong by.
"""

HANDLING_S = 1e-3
"""What its threads wait for a processor at each sample because they are stopped and let go on: 0.7 ms on two idle
cores.
"""

MOSTLY = 0.5
"""Share of disturbed rounds from which a timing is called unsteady: a median forgives less than half."""

COARSE = 0.01
"""Share of a sample from which the clock's step is mentioned."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The state of the machine at one moment of measuring; None where it cannot be read.

    at_s       seconds since measuring began
    load       runnable processes, averaged over the last minute
    cpu_mhz    clock of the first processor
    stolen     share of processor time since the last moment that a hypervisor gave to others
    sm_mhz, temperature_c, power_w, energy_j (since the driver was loaded), throttled (the driver's reasons)   of the
    device
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
class Round:
    """One turn of a candidate on the processors, while every other was stopped: what the kernel says that its threads
    had of them.

    samples       how many were taken in it
    wall_s        seconds by the parent's clock, in which the samples were asked for
    own_s         seconds that its threads were on a processor, together
    waited_s      seconds that they could have run and something else had the processor (of another process, or another
                  of its threads)
    voluntary     times that a thread gave a processor up, to wait; involuntary: times that one was taken from it
    """

    samples: int
    wall_s: float
    own_s: float
    waited_s: float
    voluntary: int
    involuntary: int

    @property
    def disturbed(self) -> bool:
        """Whether something else used its processors for more of the time than a time may be wrong by."""
        return self.waited_s - HANDLING_S * self.samples > DISTURBED * self.wall_s


LONG_LAUNCH_S = 30e-6
"""From here the host's time to launch is part of what a call in a row takes. PyTorch's own calls take 15 to 25 us of it
on an H200's host and CUDA C++ 6 to 15; less than this differs from host to host more than from kernel to kernel.
"""


def long_launch_s(launch_s: float | None) -> float:
    """The host's seconds to launch a call, where they are so many that calls in a row are bound by them; else 0.

    >>> long_launch_s(118e-6), long_launch_s(9e-6), long_launch_s(None)
    (0.000118, 0.0, 0.0)
    """
    return launch_s if launch_s is not None and launch_s > LONG_LAUNCH_S else 0.0


@dataclass(frozen=True, kw_only=True)
class Untimed:
    """No time: `reason` says why."""

    reason: str


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
    extra_bytes   memory one call took beyond its inputs and outputs, at its peak; None where it could not be told.
                  Before terms were stated, of an implementation that allocates its outputs, those too
    rounds        its turns on the processors, and what else used them meanwhile; () where the clock is a device's
    parent_s      seconds per call by the parent's clock, from requests of different length; None where it was not asked
    suspect       why this timing cannot be true (faster than the device was measured to be), with what to do; None when
                  it can
    terms         what is in a call beside the computation: core.evidence.timing_terms.CALL or OUT; "" in records from
                  before it was stated (`terms_of`)
    energy_j      joules of one call, of calls in a row with a warm cache, by the device's own counter
                  (timing/energy.py); None where it was not asked or cannot be read, and in records from before
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
    rounds: tuple[Round, ...] = ()
    parent_s: float | None = None
    terms: str = ""
    energy_j: float | None = field(default=None, metadata=ADDED)

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
    def mean_s(self) -> float:
        """The mean of the samples, outliers and all."""
        return fmean(self.samples_s)

    @property
    def std_s(self) -> float:
        """Standard deviation of the samples that were taken, outliers and all."""
        return pstdev(self.samples_s)

    @property
    def rsd(self) -> float:
        """Relative standard deviation: `std_s` over `mean_s`."""
        return self.std_s / self.mean_s if self.mean_s > 0 else math.inf

    @property
    def interval_s(self) -> tuple[float, float]:
        """A 95 % interval for the median from order statistics, assuming nothing of the distribution
        (Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2)."""
        return statistics.median_interval(self.samples_s)

    @property
    def disturbed(self) -> float:
        """Share of the rounds in which something else used its processors; 0.0 where nothing was kept of them."""
        return sum(turn.disturbed for turn in self.rounds) / len(self.rounds) if self.rounds else 0.0

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The speeds the kernel ran at: one, or two where the samples fall into two groups."""
        return statistics.modes(self.samples_s)

    @property
    def outliers(self) -> tuple[int, ...]:
        """Positions of the samples far outside the others (Tukey's outer fences). They count in every statistic
        above.
        """
        return statistics.outliers(self.samples_s)

    @property
    def steady(self) -> bool:
        """Whether a ratio may be made of it. What is only coarse is steady."""
        return not any(sentence.startswith(UNSTEADY_WORD) for sentence in self.unsteady)

    @property
    def unsteady(self) -> tuple[str, ...]:
        """What is wrong with these samples, in sentences that end with what to do; () for a steady timing."""
        reasons = []
        several = self.modes
        if len(several) == 2:
            slow, fast = several[1], several[0]
            remedy = (
                "fix the threads (OMP_PROC_BIND=close) and let nothing else run"
                if self.timer == "host"
                else "fix the clocks (nvidia-smi -lgc MHZ)"
            )
            reasons.append(
                f"unsteady: two speeds, {units.seconds(fast.median_s)} ({units.percent(fast.share)} of samples) and "
                f"{units.seconds(slow.median_s)} "
                f"({units.percent(slow.share)}); {remedy} and look which one stays"
            )
        moved = statistics.drift(self.samples_s)
        if abs(moved) > DRIFT:
            word, remedy = (
                ("slower", "the machine may be heating up or others began to work")
                if moved > 0
                else ("faster", "it was still warming up")
            )
            reasons.append(
                f"unsteady: {units.percent(abs(moved))} {word} in the second half; {remedy}: measure again with "
                "twice the --budget"
            )
        if self.disturbed > MOSTLY:
            waited, wall = sum(turn.waited_s for turn in self.rounds), sum(turn.wall_s for turn in self.rounds)
            reasons.append(
                f"unsteady: its processors were wanted by something else in {units.percent(self.disturbed)} of its "
                f"turns (its threads waited {units.seconds(waited)} "
                f"in {units.seconds(wall)}); measure again when less runs beside it"
            )
        if not reasons and not self.spread <= UNSTEADY:
            reasons.append(
                f"unsteady: samples spread over {units.percent(self.spread)} of the median; measure again with twice "
                "the --budget, on a quieter machine"
            )
        share = self.resolution_s / (self.median_s * self.batch) if self.median_s > 0 else math.inf
        if share > COARSE:
            reasons.append(
                f"coarse: the clock's step of {units.seconds(self.resolution_s)} is {units.percent(share)} of a "
                "sample; use a larger workload"
            )
        return tuple(reasons)
