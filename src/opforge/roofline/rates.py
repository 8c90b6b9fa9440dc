"""Which of a device's rates speak for a piece of work, and whether they were measured or come from the vendor."""

from __future__ import annotations

from dataclasses import dataclass

from opforge.core.definition.device import DeviceSpec
from opforge.core.definition.operator import Cost

MEASURED, VENDOR = "measured", "vendor"

READ_SHARE = {"write": 0.0, "copy": 1 / 2, "add": 2 / 3, "read": 1.0}
"""Share of bytes read in all bytes moved, for each memory ceiling."""

EXACT_IN = {
    "float16": ("float32", "tfloat32"),
    "bfloat16": ("float32", "tfloat32"),
    "tfloat32": ("float32",),
    "float8_e4m3fn": ("bfloat16", "float16", "float32"),
    "float8_e5m2": ("bfloat16", "float16", "float32"),
}
"""Formats that hold every value of a format, so that its products may be made at their rate: a processor without
float16 arithmetic is not slower at it than at float32, because the kernel converts."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A rate to divide work by: its value in bytes/s or FLOP/s, the ceiling's name, and "measured" or "vendor"."""

    value: float
    name: str
    source: str


def memory_rate(cost: Cost, spec: DeviceSpec, cached: bool) -> Rate | None:
    """The bytes/s for this mix of reads and writes; None when nothing is known.

    The measured ceiling whose share of reads is nearest, else the vendor's. `cached` asks for the ceiling at the size
    of the working set, where such were measured.
    """
    if not cost.bytes:
        return None
    share = cost.bytes_read / cost.bytes
    nearest = sorted(READ_SHARE, key=lambda name: (abs(READ_SHARE[name] - share), name))
    if cached and (rate := next((rate for name in nearest if (rate := _cached_rate(name, cost.bytes, spec))), None)):
        return rate
    ceiling = next((ceiling for name in nearest if (ceiling := spec.ceiling(name))), None)
    if ceiling is not None:
        return Rate(value=ceiling.value, name=ceiling.name, source=MEASURED)
    return Rate(value=spec.nominal_bytes_per_s, name="memory", source=VENDOR) if spec.nominal_bytes_per_s > 0 else None


def _cached_rate(name: str, size: int, spec: DeviceSpec) -> Rate | None:
    """The ceiling at the largest measured size that is not above `size`, or at a larger size if that is faster.

    A cache does not get faster with more in it; where samples say so, the smaller size was held back by the cost of
    calls.
    """
    steps = sorted(
        (int(tail), ceiling)
        for ceiling in spec.ceilings
        if (tail := ceiling.name.removeprefix(f"{name}_")) != ceiling.name and tail.isdigit()
    )
    if not steps:
        return None
    floor = max((step for step, _ in steps if step <= size), default=steps[0][0])
    best = max((ceiling for step, ceiling in steps if step >= floor), key=lambda ceiling: ceiling.value)
    return Rate(value=best.value, name=best.name, source=MEASURED)


def compute_rate(spec: DeviceSpec, dtype: str, unit: str) -> Rate | None:
    """The FLOP/s for this dtype on "matrix" or "vector" units; None when nothing is known.

    Matrix units: the ceiling of the dtype, or of a wider format where that is faster (EXACT_IN). float32 also at what
    the vector units do, on which such products run where there are no others, and at a
    third of TF32's rate: three TF32 products make one of nearly float32's accuracy (Ootomo and Yokota, Int. J. High
    Perform. Comput. Appl. 36, 2022). Vector units: arithmetic is float32 whatever the dtype of the tensors; float64 has
    its own.
    """
    if unit == "vector":
        names = ["vector_float64", "vector_float32"] if dtype == "float64" else ["vector_float32"]
        return next((rate for name in names if (rate := _rate(spec, name, name))), None)
    candidates = [_rate(spec, f"matrix_{name}", name) for name in (dtype, *EXACT_IN.get(dtype, ()))]
    if "float32" in (dtype, *EXACT_IN.get(dtype, ())):
        candidates.append(_rate(spec, "vector_float32", "vector_float32"))
    if dtype == "float32" and (split := _rate(spec, "matrix_tfloat32", "tfloat32")):
        candidates.append(Rate(value=split.value / 3, name=f"{split.name} / 3", source=split.source))
    known = [rate for rate in candidates if rate is not None]
    # a measured rate speaks before a vendor's, however the latter shines
    return max(known, key=lambda rate: (rate.source == MEASURED, rate.value), default=None)


def _rate(spec: DeviceSpec, name: str, nominal: str) -> Rate | None:
    ceiling = spec.ceiling(name)
    if ceiling is not None:
        return Rate(value=ceiling.value, name=name, source=MEASURED)
    value = spec.nominal_flops_per_s.get(nominal, 0.0)
    return Rate(value=value, name=name, source=VENDOR) if value > 0 else None
