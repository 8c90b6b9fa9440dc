"""The state of the machine around each round of samples, and what it says in words. Nothing here stops a
measurement.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opforge.core.evidence.timing import Moment
from opforge.core.language import units
from opforge.machine import host_hardware

THROTTLES = {
    0x0004: "power cap",
    0x0008: "hardware slowdown",
    0x0020: "thermal slowdown (software)",
    0x0040: "thermal slowdown (hardware)",
    0x0080: "power brake",
}
"""NVML's clock event reasons that lower clocks below what was asked for (nvml.h, nvmlClocksEventReasons)."""

CLOCK_RANGE = 0.05
"""The range of a clock that is said. Compute-bound times follow it: 5 % is five times the dead band of a comparison."""
STOLEN = 0.02
"""The share of the processors that a hypervisor took which is said: twice the dead band of a comparison."""


class Nvml:
    """Clocks, temperature and power of one NVIDIA device through NVML. `library` is the pynvml module."""

    def __init__(self, library: Any, handle: Any) -> None:
        self.library = library
        self.handle = handle

    @classmethod
    def open(cls, uuid: str) -> Nvml | None:
        """The device with this UUID (CUDA_VISIBLE_DEVICES renumbers, UUIDs stay); None where pynvml or the driver is
        missing.
        """
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
            return cls(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid))
        except pynvml.NVMLError:
            return None

    def read(self) -> dict[str, Any]:
        """The fields of a Moment that NVML gives; those that this device does not have are left out."""
        library, handle = self.library, self.handle
        readers: dict[str, Callable[[], Any]] = {
            "sm_mhz": lambda: float(library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_SM)),
            "temperature_c": lambda: float(library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU)),
            "power_w": lambda: library.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "energy_j": lambda: library.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3,
            "throttled": lambda: throttle_words(library.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        }
        clocks = {}
        for name, reader in readers.items():
            with contextlib.suppress(library.NVMLError):  # not supported by this device: the field stays None
                clocks[name] = reader()
        return clocks


def throttle_words(bits: int) -> tuple[str, ...]:
    """NVML's reasons in words.

    >>> throttle_words(0x24), throttle_words(0x1)
    (('power cap', 'thermal slowdown (software)'), ())
    """
    return tuple(word for bit, word in THROTTLES.items() if bits & bit)


class StateProbe:
    """Reads Moments. `device` is a torch device type; `root` stands for / in tests, `clock` for the time."""

    def __init__(
        self,
        device: str = "cpu",
        *,
        root: Path = host_hardware.ROOT,
        clock: Callable[[], float] = time.perf_counter,
        nvml: Nvml | None = None,
    ) -> None:
        self.root = root
        self.clock = clock
        self.started = clock()
        self.nvml = nvml if nvml is not None else nvml_of(device)
        self.ticks = _ticks(root)

    def read(self) -> Moment:
        """The state now; well below a millisecond, so that it can be asked for between rounds."""
        before, self.ticks = self.ticks, _ticks(self.root)
        passed = self.ticks[0] - before[0]
        megahertz = host_hardware.megahertz(self.root)
        return Moment(
            at_s=self.clock() - self.started,
            load=host_hardware.load_average(self.root),
            cpu_mhz=float(megahertz) if megahertz else None,
            stolen=(self.ticks[1] - before[1]) / passed if passed > 0 else None,
            **(self.nvml.read() if self.nvml is not None else {}),
        )


def words(moments: Sequence[Moment]) -> tuple[str, ...]:
    """What happened while measuring, for a reader: ranges, and what disturbed with what to do about it."""
    lines: list[str] = []
    loads = [moment.load for moment in moments if moment.load is not None]
    if loads:
        lines.append(f"load {loads[0]:.1f} before, {loads[-1]:.1f} after")
    stolen = max((moment.stolen for moment in moments if moment.stolen is not None), default=0.0)
    if stolen > STOLEN:
        lines.append(
            f"the hypervisor gave {units.percent(stolen)} of processor time to others in the worst round: expect "
            "wide intervals, compare in pairs"
        )
    clocks = [moment.sm_mhz for moment in moments if moment.sm_mhz]
    if clocks:
        lines.append(f"SM clock {min(clocks):.0f} to {max(clocks):.0f} MHz")
        if max(clocks) - min(clocks) > CLOCK_RANGE * max(clocks):
            lines.append("the SM clock moved while measuring; fix it where you may: nvidia-smi -lgc MHZ")
    heat = [moment.temperature_c for moment in moments if moment.temperature_c is not None]
    if heat:
        lines.append(f"{min(heat):.0f} to {max(heat):.0f} C")
    power = [moment.power_w for moment in moments if moment.power_w is not None]
    if power:
        lines.append(f"{min(power):.0f} to {max(power):.0f} W")
    energy = [moment.energy_j for moment in moments if moment.energy_j is not None]
    if len(energy) > 1:
        lines.append(f"{energy[-1] - energy[0]:.3g} J in all")
    reasons = {reason for moment in moments for reason in moment.throttled}
    if reasons:
        count = sum(bool(moment.throttled) for moment in moments)
        lines.append(
            f"clocks were held back in {count} of {len(moments)} rounds ({units.listed(sorted(reasons))}): let the "
            "device cool, or compare in pairs only"
        )
    return tuple(lines)


def nvml_of(device: str) -> Nvml | None:
    """NVML's handle of the current device of a torch device type; None where there is none."""
    if device != "cuda":
        return None
    import torch

    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    return Nvml.open(f"GPU-{uuid}") if uuid is not None else None


def _ticks(root: Path) -> tuple[int, int]:
    """Processor time of all kinds, and what a hypervisor took of it, in ticks since the start (/proc/stat)."""
    line = host_hardware.text_of(root / "proc/stat").partition("\n")[0].split()
    counts = [int(word) for word in line[1:9] if word.isdigit()]
    return (sum(counts), counts[7]) if len(counts) == 8 else (0, 0)
