"""Energy of a call, by the device's own counter: NVML's of an NVIDIA GPU, RAPL's of a processor's packages.

A turn of a measurement is as short as the step of such a counter. So each kernel that was timed is called again for a
second, in a row and alone, with the counter read before and after. The counter sees the whole board, or all packages:
what an idle device takes and what else runs are in it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from opforge.machine import host_hardware
from opforge.timing.conditions import Nvml, nvml_of

RAPL = "sys/class/powercap"
MICRO = 1e-6


@dataclass(frozen=True, kw_only=True)
class Meter:
    """`joules()` counts up from an arbitrary beginning; None where it cannot be read now. `name` is the counter's."""

    name: str
    joules: Callable[[], float | None]


@dataclass(frozen=True, kw_only=True)
class NoMeter:
    """Why no energy can be read here, with what to do, in a sentence."""

    reason: str


def meter(device: str, *, root: Path = host_hardware.ROOT, nvml: Nvml | None = None) -> Meter | NoMeter:
    """The counter of a torch device type. `root` stands for / in tests, `nvml` for the device's."""
    if device == "cpu":
        return _rapl(root)
    if device != "cuda":
        return NoMeter(reason=f"Energy is not measured: no counter of {device} is known here")
    board = nvml or nvml_of(device)
    if board is None:
        return NoMeter(reason="Energy is not measured: NVML is not reached. Install it with: pip install nvidia-ml-py")

    def joules() -> float | None:
        counted = board.read().get("energy_j")
        return float(counted) if counted is not None else None

    if joules() is None:
        return NoMeter(reason="Energy is not measured: this GPU has no counter of it (those before Volta have none)")
    return Meter(name="NVML", joules=joules)


def _rapl(root: Path) -> Meter | NoMeter:
    packages = [
        folder
        for folder in sorted((root / RAPL).glob("*-rapl:*"))
        if host_hardware.text_of(folder / "name").startswith("package")
    ]
    if not packages:
        return NoMeter(
            reason="Energy is not measured: this system shows no RAPL counter (virtual machines rarely do, nor do "
            "processors that are not x86)"
        )
    spans = {folder: _whole(folder / "max_energy_range_uj") or 0 for folder in packages}
    seen: dict[Path, int] = {}
    turned: dict[Path, int] = dict.fromkeys(packages, 0)

    def joules() -> float | None:
        total = 0
        for folder in packages:
            now = _whole(folder / "energy_uj")
            if now is None:
                return None
            if now < seen.get(folder, now):
                # the counter has begun again
                turned[folder] += spans[folder]
            seen[folder] = now
            total += now + turned[folder]
        return total * MICRO

    if joules() is None:
        return NoMeter(
            reason=f"Energy is not measured: the RAPL counter is for root alone. Allow it with: chmod a+r "
            f"/{RAPL}/*/energy_uj"
        )
    return Meter(name="RAPL", joules=joules)


def _whole(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text(encoding="ascii"))
    return None


def calls_for(call_s: float, wanted_s: float) -> tuple[int, int]:
    """Calls in a sample, and samples, of a request that keeps a device busy for so long: ten milliseconds a sample.

    >>> calls_for(1e-3, 1.0)
    (10, 100)
    """
    batch = max(1, math.ceil(0.01 / call_s))
    return batch, max(1, math.ceil(wanted_s / (batch * call_s)))
