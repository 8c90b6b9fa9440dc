"""The roofline: the least time a device allows for a piece of work, how near a timing comes to it, and what cannot be
true.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", CACM 52 (4), 2009.
"""

from __future__ import annotations

from dataclasses import dataclass

from opforge.core.definition.device import ONE_THREAD, DeviceSpec
from opforge.core.definition.operator import Cost
from opforge.core.evidence.timing import Timing
from opforge.core.language import units
from opforge.roofline.rates import MEASURED, READ_SHARE, compute_rate, memory_rate

MARGIN = 1.05
"""How much faster than a measured ceiling a result may be before it is doubted."""

UNCERTAIN_MARGIN = 1.25
"""The same for arithmetic where no vendor's peak is known: a library's product of matrices is a good rate, not
a limit.
"""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The least time for one call, and what sets it.

    limiter           "memory" or "compute"
    bytes_per_s       rate used for the traffic; 0 where none is known (then memory cannot limit)
    flops_per_s       rate used for the arithmetic; 0 where none is known
    memory_source     "measured", "vendor" or "unknown"; memory_ceiling names the ceiling
    compute_source    the same for the arithmetic
    cached            the working set fits into the last-level cache and calls before may have left it there: the rate
                      is the cache's where that was measured, and otherwise a kernel may rightly be faster than this
    """

    time_s: float
    limiter: str
    bytes_per_s: float
    flops_per_s: float
    memory_source: str
    memory_ceiling: str
    compute_source: str
    compute_ceiling: str
    cached: bool


@dataclass(frozen=True, kw_only=True)
class Achieved:
    """What a timing delivered. `fraction` is bound / median: 1.0 is all that the device allows; None without a
    bound.
    """

    bytes_per_s: float
    flops_per_s: float
    fraction: float | None


def bound(cost: Cost, spec: DeviceSpec, dtype: str, unit: str = "vector", *, cache: str = "warm") -> Bound | None:
    """The Bound for `cost` on a device; None when neither its memory's nor its arithmetic's rate is known.

    unit    the operator's: "vector" or "matrix"
    cache   the timing's: "cold" means that the last-level cache was flushed, so inputs come from memory whatever their
            size
    """
    cached = cache != "cold" and 0 < cost.bytes <= spec.cache_bytes
    memory = memory_rate(cost, spec, cached)
    compute = compute_rate(spec, dtype, unit) if cost.flops else None
    if memory is None and compute is None:
        return None
    memory_s = cost.bytes / memory.value if memory else 0.0
    compute_s = cost.flops / compute.value if compute else 0.0
    return Bound(
        time_s=max(memory_s, compute_s),
        limiter="memory" if memory_s >= compute_s else "compute",
        bytes_per_s=memory.value if memory else 0.0,
        flops_per_s=compute.value if compute else 0.0,
        memory_source=memory.source if memory else "unknown",
        memory_ceiling=memory.name if memory else "",
        compute_source=compute.source if compute else "unknown",
        compute_ceiling=compute.name if compute else "",
        cached=cached,
    )


def achieved(cost: Cost, timing: Timing, limit: Bound | None = None) -> Achieved:
    """cost / timing.median_s: what memory and arithmetic really delivered, and the fraction of `limit`."""
    seconds = timing.median_s
    return Achieved(
        bytes_per_s=cost.bytes / seconds,
        flops_per_s=cost.flops / seconds,
        fraction=limit.time_s / seconds if limit else None,
    )


def suspect(cost: Cost, timing: Timing, spec: DeviceSpec, dtype: str, unit: str = "vector") -> str | None:
    """Why this timing cannot be true, with what to do; None when it can. Only measured ceilings accuse.

    Accused is a median that is shorter than
    - the launch floor of the device;
    - the traffic that no cache can have saved, at the fastest memory ceiling of any mix, by more than MARGIN. A cold
      cache saves writes at most, a warm one anything up to its size;
    - the arithmetic, at the vendor's peak or the measured rate by MARGIN, whichever is faster; by UNCERTAIN_MARGIN
      where no vendor's peak is known. A processor is granted what its threads reach if each is as fast as one alone:
      what all of them together do is too low where it was measured while others had the processors. Vector arithmetic
      on 16-bit values is granted twice the rate: it may be packed in pairs.
    """
    seconds = timing.median_s
    reasons = [
        _too_quick(seconds, spec),
        _too_much_traffic(cost, timing, spec),
        _too_much_arithmetic(cost, seconds, spec, dtype, unit),
    ]
    told = [reason for reason in reasons if reason]
    if not told:
        return None
    advice = (
        "Verify the outputs of the timed calls, and measure the ceilings again on a quiet machine: opforge "
        "machine --again"
    )
    return f"{'; '.join(told)}. {advice}"


def _too_quick(seconds: float, spec: DeviceSpec) -> str | None:
    floor = spec.ceiling("launch")
    if floor is None or seconds * MARGIN >= floor.value:
        return None
    return f"{units.seconds(seconds)} is less than the launch of an empty kernel ({units.seconds(floor.value)})"


def _too_much_traffic(cost: Cost, timing: Timing, spec: DeviceSpec) -> str | None:
    measured = [ceiling.value for name in READ_SHARE if (ceiling := spec.ceiling(name))]
    written_back = max(0, cost.bytes_written - spec.cache_bytes)
    least = cost.bytes_read + written_back if timing.cache == "cold" else cost.bytes - spec.cache_bytes
    if not measured or least <= 0:
        return None
    rate = least / timing.median_s
    if rate <= MARGIN * max(measured):
        return None
    return (
        f"{units.bytes_per_s(rate)} from memory is more than the {units.bytes_per_s(max(measured))} that this "
        "device was measured to reach"
    )


def _too_much_arithmetic(cost: Cost, seconds: float, spec: DeviceSpec, dtype: str, unit: str) -> str | None:
    rate = compute_rate(spec, dtype, unit) if cost.flops else None
    if rate is None or rate.source != MEASURED:
        return None
    peak = _vendor_peak(spec, dtype, unit)
    one = spec.ceiling(rate.name + ONE_THREAD)
    known = max(rate.value, one.value * spec.units if one else 0.0)
    packed = 2.0 if unit == "vector" and dtype in ("float16", "bfloat16") else 1.0
    limit = packed * (max(MARGIN * known, peak) if peak else UNCERTAIN_MARGIN * known)
    reached = cost.flops / seconds
    if reached <= limit:
        return None
    return f"{units.flops_per_s(reached)} in {dtype} is more than this device can do ({units.flops_per_s(limit)})"


def _vendor_peak(spec: DeviceSpec, dtype: str, unit: str) -> float:
    if unit == "vector":
        return spec.nominal_flops_per_s.get("vector_float32", 0.0)
    return max(
        spec.nominal_flops_per_s.get(dtype, 0.0),
        spec.nominal_flops_per_s.get("tfloat32", 0.0) / 3 if dtype == "float32" else 0.0,
    )
