"""The class of a kernel's bottleneck, from the share of its roof, its code, and counters where they may be read.

The order of the questions is the one of a person at the profiler: is it right, is anything left to gain, does a call
cost more than its work, then the code, then the memory or the arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from opforge.core.definition.device import DeviceSpec
from opforge.core.definition.implementation import Config, Implementation
from opforge.core.definition.operator import Cost
from opforge.core.evidence.diagnosis import (
    ARITHMETIC,
    CACHE,
    INDEXING,
    MEMORY,
    OCCUPANCY,
    OVERHEAD,
    ROOF,
    SCALAR,
    SPILLS,
    UNKNOWN,
    WRONG,
    Diagnosis,
    Evidence,
)
from opforge.core.evidence.inspection import KernelUse
from opforge.core.evidence.timing import Timing
from opforge.core.evidence.verdict import Verdict, may_be_timed
from opforge.core.language import units
from opforge.diagnose.directions import directions
from opforge.diagnose.refusals import refusal_of
from opforge.roofline import Bound, achieved

WANTED_BANDWIDTH, WANTED_HITS = 0.6, 0.8
"""Of the seeds: more than 60 % of the bandwidth, more than 80 % of the accesses found in the cache."""
NEAR_ROOF = 0.9
"""From here on a better kernel gains less than 1.1 times; with such a share the kernels of this package stopped."""
OVERHEAD_CALLS = 4.0
"""A call that takes less than so many empty ones is mostly a call: its launch is a quarter of it and more."""
STEADY = 0.2
"""A wider interval of the median, over it, is a busy machine and no property of the kernel: measure again."""
FEW_WARPS = 0.25
"""Of the warps that a multiprocessor holds: below, latency is not hidden for kernels that wait for memory."""
MOSTLY_VECTOR = 0.5
"""Tails and scalars of a vectorised library are less than half of its arithmetic (here: 60 to 95 % is packed)."""


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """What the code of a C++ library says (inspect.host_code), in numbers; `reason` where it was not read."""

    vector_share: float | None = None
    divisions: int = 0
    on_stack: int = 0
    parallel: bool = True
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is known of a kernel on one workload.

    roof       what bounds it there; None where no rate of the device is known
    kernels    what its compiled kernels use, on a GPU; host: the same of a C++ library
    counters   percent by name (inspect.counters.METRICS); why_no_counters where they were not read
    rivals     other implementations that were timed on the workload: name -> seconds
    generated  whether `opforge optimize` has rules for it
    """

    implementation: Implementation
    workload: str
    dtype: str
    device: DeviceSpec
    config: Config
    cost: Cost
    verdict: Verdict
    timing: Timing | None
    roof: Bound | None
    kernels: tuple[KernelUse, ...] = ()
    host: HostFacts | None = None
    counters: Mapping[str, float] = field(default_factory=dict)
    why_no_counters: str = ""
    why_no_code: str = ""
    rivals: Mapping[str, float] = field(default_factory=dict)
    generated: bool = False


def diagnose(subject: Subject) -> Diagnosis:
    """The Diagnosis of a kernel: its class with the evidence, and two directions at least."""
    fraction = None
    if subject.timing is not None and subject.roof is not None:
        fraction = achieved(subject.cost, subject.timing, subject.roof).fraction
    bottleneck, because = _class(subject, fraction)
    return Diagnosis(
        operator=subject.implementation.operator,
        implementation=subject.implementation.name,
        workload=subject.workload,
        dtype=subject.dtype,
        device=subject.device.name,
        config=str(subject.config),
        bottleneck=bottleneck,
        because=because,
        fraction=fraction,
        evidence=(*_of_time(subject, fraction), *_of_code(subject), *_of_counters(subject)),
        directions=directions(
            bottleneck,
            subject.implementation,
            subject.workload,
            subject.dtype,
            rivals={
                name: seconds
                for name, seconds in subject.rivals.items()
                if subject.timing is not None and seconds < subject.timing.median_s
            },
            generated=subject.generated,
            device=subject.device,
            refused=refusal_of(subject.verdict),
        ),
    )


def _class(subject: Subject, fraction: float | None) -> tuple[str, str]:
    timing, roof = subject.timing, subject.roof
    if timing is None:
        allowed = may_be_timed(subject.verdict, subject.implementation.backend)
        why = "it was not timed" if allowed else "only right answers are timed"
        told = f"the verdict is {type(subject.verdict).__name__}: {why}"
        if (known := refusal_of(subject.verdict)) is not None:
            told += f"; likely {known.cause}"
        return (UNKNOWN if allowed else WRONG), told
    if fraction is not None and fraction >= NEAR_ROOF:
        told = f"{units.percent(fraction)} of the roofline bound is reached"
        if fraction > 1:
            return ROOF, f"{told}: the caches gave more than memory does, so this bound says nothing of what is left"
        return ROOF, f"{told}: at most {1 / fraction:.2f}x is left"
    if (spilled := _spills(subject)) > 0:
        return SPILLS, f"{spilled} bytes a thread go to memory for want of registers"
    call = subject.device.ceiling("call" if subject.device.kind == "cpu" else "launch")
    if call is not None and timing.median_s < OVERHEAD_CALLS * call.value:
        return OVERHEAD, f"a call takes {units.seconds(timing.median_s)}, an empty one {units.seconds(call.value)}"
    host = subject.host
    if host is not None and host.vector_share is not None and host.vector_share < MOSTLY_VECTOR:
        return SCALAR, f"{units.percent(host.vector_share)} of the floating-point instructions work on vectors"
    hits = subject.counters.get("l2_hit_percent")
    limiter = roof.limiter if roof is not None else ""
    if limiter == "memory" and hits is not None and hits < 100 * WANTED_HITS:
        return CACHE, f"{hits:.0f} % of the accesses are found in the L2 cache"
    resident = min((k.residency.fraction for k in subject.kernels if k.residency is not None), default=1.0)
    if resident < FEW_WARPS:
        return OCCUPANCY, f"{units.percent(resident)} of the warps that a multiprocessor holds fit at once"
    if roof is None:
        return UNKNOWN, "no rate of this device is known"
    if host is not None and host.divisions > 2 * INDEX_DIVISIONS and fraction is not None and fraction < 0.3:
        return (
            INDEXING,
            f"{host.divisions} divisions of whole numbers in the code, and {units.percent(fraction)} of the roof",
        )
    assert fraction is not None
    return (MEMORY if limiter == "memory" else ARITHMETIC), (
        f"{units.percent(fraction)} of what {'memory' if limiter == 'memory' else 'arithmetic'} allows is reached"
    )


INDEX_DIVISIONS = 12
"""A library for three dtypes has about as many: shapes, shares of the threads. An index that is divided for each
element brings more (counted in the generated kernels, gcc 12)."""


def _spills(subject: Subject) -> int:
    return sum((k.spill_store_bytes or 0) + (k.spill_load_bytes or 0) for k in subject.kernels if k.spills)


def _of_time(subject: Subject, fraction: float | None) -> list[Evidence]:
    timing, roof = subject.timing, subject.roof
    if timing is None:
        return [Evidence(name="time", value="not timed", source=f"verdict {type(subject.verdict).__name__}")]
    low, high = timing.interval_s
    rates = achieved(subject.cost, timing, roof)
    found = [
        Evidence(
            name="time",
            value=f"{units.seconds(timing.median_s)} (95 % interval {units.seconds(low)} to {units.seconds(high)})",
            criterion=f"interval within {units.percent(STEADY)}",
            met=high - low <= STEADY * timing.median_s,
            source=f"{timing.timer} clock, cache {timing.cache}",
        )
    ]
    if roof is not None and fraction is not None:
        found.append(
            Evidence(
                name="share of the roof",
                value=units.percent(fraction),
                criterion=f"> {units.percent(NEAR_ROOF)}",
                met=fraction >= NEAR_ROOF,
                source=f"{roof.limiter} bound of {units.seconds(roof.time_s)}"
                + (", working set in the cache" if roof.cached else ""),
            )
        )
        if roof.bytes_per_s:
            share = rates.bytes_per_s / roof.bytes_per_s
            found.append(
                Evidence(
                    name="bandwidth",
                    value=f"{units.bytes_per_s(rates.bytes_per_s)}, {units.percent(share)} of {roof.memory_ceiling}",
                    criterion=f"> {units.percent(WANTED_BANDWIDTH)}",
                    met=share > WANTED_BANDWIDTH,
                    source=f"least traffic over the time; the ceiling is {roof.memory_source}",
                )
            )
    found.append(Evidence(name="arithmetic", value=units.flops_per_s(rates.flops_per_s), source="FLOPs over the time"))
    return found


def _of_code(subject: Subject) -> list[Evidence]:
    host = subject.host
    if host is not None and not host.reason:
        share = host.vector_share
        return [
            Evidence(
                name="vector instructions",
                value="no arithmetic" if share is None else f"{units.percent(share)} of the floating-point arithmetic",
                criterion=f"> {units.percent(MOSTLY_VECTOR)}",
                met=None if share is None else share >= MOSTLY_VECTOR,
                source="compiled code, all dtypes",
            ),
            Evidence(name="divisions of whole numbers", value=str(host.divisions), source="compiled code"),
            Evidence(name="vector registers on the stack", value=str(host.on_stack), source="compiled code"),
            Evidence(
                name="threads", value="started" if host.parallel else "none: one processor", source="compiled code"
            ),
        ]
    if host is not None or not subject.kernels:
        why = host.reason if host is not None else subject.why_no_code or "this backend's code is not read"
        return [Evidence(name="compiled code", value="not read", source=why)]
    found = []
    for kernel in subject.kernels:
        source = f"compiled code of {kernel.kernel}"
        found.append(Evidence(name="registers a thread", value=str(kernel.registers), source=source))
        found.append(
            Evidence(
                name="spills",
                value=f"{(kernel.spill_store_bytes or 0) + (kernel.spill_load_bytes or 0)} bytes",
                criterion="none",
                met=not kernel.spills,
                source=source,
            )
        )
        if kernel.residency is not None:
            found.append(
                Evidence(
                    name="occupancy",
                    value=f"{units.percent(kernel.residency.fraction)}, limited by "
                    f"{units.listed(kernel.residency.limited_by)}",
                    criterion=f"> {units.percent(FEW_WARPS)}",
                    met=kernel.residency.fraction > FEW_WARPS,
                    source=source,
                )
            )
    return found


def _of_counters(subject: Subject) -> list[Evidence]:
    wanted = {
        "l2_hit_percent": ("L2 hits", 100 * WANTED_HITS),
        "dram_percent": ("DRAM throughput", 100 * WANTED_BANDWIDTH),
        "sm_percent": ("SM efficiency", None),
        "occupancy_percent": ("warps active", None),
        "vector_percent": ("vector unit busy", None),
        "cube_percent": ("cube unit busy", None),
        "scalar_percent": ("scalar unit busy", None),
        "mte2_percent": ("loads under way (MTE2)", None),
    }
    if not subject.counters:
        why = subject.why_no_counters or "not asked"
        names = ", ".join(name for name, _ in list(wanted.values())[:4])
        return [Evidence(name=names, value="not read", criterion=f"L2 hits > {units.percent(WANTED_HITS)}", source=why)]
    found = []
    for key, (name, least) in wanted.items():
        if (value := subject.counters.get(key)) is not None:
            found.append(
                Evidence(
                    name=name,
                    value=f"{value:.0f} %",
                    criterion="" if least is None else f"> {least:.0f} %",
                    met=None if least is None else value > least,
                    source="msprof" if "mte2_percent" in subject.counters else "ncu",
                )
            )
    return found
