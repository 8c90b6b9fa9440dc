"""Whether a change of layout pays: what the conversion moves, against what each use of the new layout saves."""

from __future__ import annotations

import math
from dataclasses import dataclass

from opforge.core.definition.device import DeviceSpec
from opforge.core.definition.operator import Cost
from opforge.core.language.errors import UsageError
from opforge.roofline.rates import memory_rate


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """A prediction, not a measurement: it divides bytes by a rate.

    time_s        seconds that the conversions take together
    gain_s        seconds that one use is shorter in the new layout; negative when it is longer
    uses_to_pay   the least number of uses after which time has been saved; None when no number is enough
    rate_source   "measured" or "vendor": where the memory's rate comes from
    """

    time_s: float
    gain_s: float
    uses_to_pay: int | None
    rate_source: str

    def saved_s(self, uses: int) -> float:
        """Seconds saved by converting once and using the result `uses` times; negative when that is a loss."""
        return uses * self.gain_s - self.time_s

    def pays(self, uses: int) -> bool:
        """Whether converting once for `uses` uses saves time."""
        return self.saved_s(uses) > 0


def estimate_conversion(*costs: Cost, spec: DeviceSpec, gain_s: float, fraction: float = 0.9) -> Conversion:
    """When it pays to convert a tensor's layout before it is used.

    costs      of each conversion made: there, and back if the result has to be in the old layout (`operator.cost(axes,
               dtype)` of transpose, nchw_to_nhwc, to_blocked, …)
    gain_s     seconds that one use is shorter in the new layout: the difference of two timings of the operator that
               uses it
    fraction   share of the memory's rate that the conversion reaches; 0.9 is what the kernels here reach on large
               tensors

    A convolution that is 40 us faster on NHWC pays for the 205 MB that a conversion moves at 4 TB/s, 51 us, at its
    second use:

        estimate_conversion(cost, spec=spec, gain_s=40e-6).uses_to_pay

    Raises UsageError where the device's memory rate is not known.
    """
    time_s, sources = 0.0, set()
    for cost in costs:
        # a tensor about to be used has just been written: what fits the cache is still there
        rate = memory_rate(cost, spec, cost.bytes <= spec.cache_bytes)
        if rate is None:
            raise UsageError(f"Nothing is known of the memory of {spec.name}. Measure it with: opforge machine --again")
        time_s += cost.bytes / (rate.value * fraction)
        sources.add(rate.source)
    uses = math.floor(time_s / gain_s) + 1 if gain_s > 0 else None
    return Conversion(
        time_s=time_s, gain_s=gain_s, uses_to_pay=uses, rate_source="measured" if sources == {"measured"} else "vendor"
    )
