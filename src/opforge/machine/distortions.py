"""What would make a time here mean something else than the reader thinks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from opforge.machine import accelerator, host_hardware
from opforge.machine.versions import built_for_debugging

SET = {
    "CUDA_LAUNCH_BLOCKING": "every launch waits for its kernel, so launch and kernel times add up",
    "HIP_LAUNCH_BLOCKING": "every launch waits for its kernel, so launch and kernel times add up",
    "ASCEND_LAUNCH_BLOCKING": "every launch waits for its kernel, so launch and kernel times add up",
    "AMD_SERIALIZE_KERNEL": "kernels never overlap",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every allocation goes to the driver",
}
"""Variables that distort on an accelerator, and how."""

SET_ANYWHERE = {
    "TRITON_INTERPRET": "Triton kernels run in the interpreter",
    "TRITON_DEBUG": "Triton compiles with assertions",
    "MALLOC_CHECK_": "every allocation is checked",
    "MALLOC_PERTURB_": "every allocation is overwritten",
    "ATEN_CPU_CAPABILITY": "torch is held to an older instruction set",
    "ONEDNN_MAX_CPU_ISA": "oneDNN is held to an older instruction set",
    "LD_PRELOAD": "a library is put before all others",
}
BUSY = 0.5
"""Load per core from which other work is taken to disturb."""


def warnings(
    device: str, *, environ: Mapping[str, str] | None = None, root: Path = host_hardware.ROOT, load: bool = True
) -> tuple[str, ...]:
    """Sentences on what distorts times taken on `device` (a torch device type) now, each ending with what to do.

    Empty on a machine that is fit for measuring. Nothing here stops a measurement. `load` False leaves out how busy the
    processors are: asked in the middle of a run, that is the run's own work.
    """
    variables = os.environ if environ is None else environ
    told = _variables(device, variables)
    told += _builds()
    told += _processor(variables, root, load)
    if device != "cpu":
        told += _neighbours(root)
    return tuple(told)


def _variables(device: str, variables: Mapping[str, str]) -> list[str]:
    known = SET_ANYWHERE if device == "cpu" else {**SET, **SET_ANYWHERE}
    return [
        f"{name} is set: {effect}. Unset it: unset {name}"
        for name, effect in known.items()
        if variables.get(name, "0") not in ("", "0")
    ]


def _builds() -> list[str]:
    told = []
    if hasattr(sys, "gettotalrefcount"):
        told.append("This Python is a debug build, several times slower on the host side. Use a release build.")
    if sys.flags.dev_mode:
        told.append(
            "Python runs in development mode, with checks on every allocation. Start it without -X dev and without "
            "PYTHONDEVMODE."
        )
    if sys.gettrace() is not None or sys.getprofile() is not None:
        told.append("A debugger, profiler or coverage tool traces every call. Run without it to time.")
    if built_for_debugging():
        told.append("torch is a debug build. Install a release build to time.")
    return told


def _processor(variables: Mapping[str, str], root: Path, load: bool) -> list[str]:
    told = []
    cores = host_hardware.look(root).cores
    chosen = host_hardware.governor(root)
    if chosen in ("powersave", "conservative", "ondemand", "schedutil"):
        told.append(
            f"The frequency governor is {chosen}: clocks follow the load. Fix them: sudo cpupower frequency-set -g "
            "performance"
        )
    average = host_hardware.load_average(root) if load else None
    if average is not None and average > BUSY * cores:
        told.append(
            f"Other work is running (load {average:.1f} on {cores} cores). Wait until it is done, or expect wide "
            "intervals and raise --budget."
        )
    if host_hardware.on_battery(root):
        told.append("The machine runs on battery and saves power. Plug it in.")
    threads = variables.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > cores:
        told.append(
            f"OMP_NUM_THREADS={threads} asks for more threads than the {cores} cores this process may use. Set it to "
            f"{cores} or less."
        )
    granted = host_hardware.quota(root)
    if granted is not None and granted < cores:
        told.append(
            f"The container grants {granted:g} of {cores} cores: threads are stopped in turns. Set "
            f"OMP_NUM_THREADS={max(1, int(granted))} or raise the grant."
        )
    return told


def _neighbours(root: Path) -> list[str]:
    """Processes on the device that this one did not start. Those of another container have no entry in /proc here and
    are not seen.
    """
    foreign = [process for process in accelerator.processes() if _foreign(process, root)]
    if not foreign:
        return []
    return [
        f"Another process computes on the device (pid {', '.join(map(str, foreign))}). Wait for it, or choose "
        "another device with CUDA_VISIBLE_DEVICES."
    ]


def _foreign(process: int, root: Path) -> bool:
    """Whether the process is here, and neither this one nor one of those that it started, or that they did."""
    if not (root / "proc" / str(process)).exists():
        return False
    while process > 1:
        if process == os.getpid():
            return False
        # the name in parentheses may hold anything; the parent's id is the second field after it
        fields = host_hardware.text_of(root / "proc" / str(process) / "stat").rpartition(")")[2].split()
        process = int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else 0
    return True
