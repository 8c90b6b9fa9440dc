"""The accelerator of this machine, asked through torch's device-agnostic modules and, for NVIDIA, through
nvidia-smi.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opforge.core.language import spans
from opforge.core.language.errors import EnvironmentLacks
from opforge.machine.host_hardware import ROOT, text_of

COMMAND_LIMIT_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """What torch reports of the current device of a type; 0 where it does not say.

    kind     torch device type ("cuda" also under ROCm, "npu", "xpu", …)
    target   what compilers call it: "sm_90a", "gfx942"; "" if unknown
    """

    kind: str
    name: str
    target: str
    units: int
    warp_size: int
    memory_bytes: int
    cache_bytes: int
    registers_per_unit: int
    shared_bytes_per_unit: int
    shared_bytes_per_block: int
    threads_per_unit: int


@functools.cache
def look(device: str) -> Accelerator:
    """The Accelerator behind a torch device type. Raises EnvironmentLacks when torch is absent or has no such
    device.
    """
    try:
        import torch
    except ImportError as error:
        raise EnvironmentLacks(
            f"A {device!r} device needs PyTorch, which cannot be imported ({error}). Install it, or use --device cpu."
        ) from error
    try:
        module = torch.get_device_module(device)
        present = bool(module.is_available())
    except (RuntimeError, AttributeError) as error:
        raise EnvironmentLacks(
            f"torch knows no device type {device!r} here. See what is here with: opforge doctor"
        ) from error
    if not present:
        raise EnvironmentLacks(f"torch sees no {device!r} device here. See what is here with: opforge doctor")
    properties = module.get_device_properties(module.current_device())
    return Accelerator(
        kind=device,
        name=str(module.get_device_name(module.current_device())),
        target=_target(properties),
        units=_number(properties, "multi_processor_count", "cube_core_num", "gpu_subslice_count"),
        warp_size=_number(properties, "warp_size"),
        memory_bytes=_number(properties, "total_memory"),
        cache_bytes=_number(properties, "L2_cache_size", "last_level_cache_size"),
        registers_per_unit=_number(properties, "regs_per_multiprocessor"),
        shared_bytes_per_unit=_number(properties, "shared_memory_per_multiprocessor", "local_mem_size"),
        shared_bytes_per_block=_number(properties, "shared_memory_per_block_optin", "shared_memory_per_block"),
        threads_per_unit=_number(properties, "max_threads_per_multi_processor"),
    )


def driver(device: str, root: Path = ROOT) -> str:
    """The version of the driver behind a device type; "" if unknown."""
    if device == "cuda":
        nvidia = smi("driver_version")
        return nvidia[0] if nvidia else text_of(root / "sys/module/amdgpu/version")
    return ""


def smi(*fields: str) -> tuple[str, ...] | None:
    """The values of nvidia-smi's fields for the current device; None where nvidia-smi is absent or refuses.

    The device is named by its PCI address, because CUDA_VISIBLE_DEVICES renumbers devices and nvidia-smi does not
    follow.
    """
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    query = [command, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    address = _address()
    output = command_output([*query, f"--id={address}"] if address else query)
    lines = output.splitlines()
    values = tuple(value.strip() for value in lines[0].split(",")) if lines else ()
    return values if len(values) == len(fields) else None


def cuda_targets() -> tuple[str, ...]:
    """What compilers call the NVIDIA GPUs that nvidia-smi sees, each once: ("sm_90a",). PyTorch is not asked."""
    command = shutil.which("nvidia-smi")
    output = command_output([command, "--query-gpu=compute_cap", "--format=csv,noheader"]) if command else ""
    found = [re.fullmatch(r"(\d+)\.(\d+)", line.strip()) for line in output.splitlines()]
    return tuple(dict.fromkeys(cuda_target(int(seen[1]), int(seen[2])) for seen in found if seen))


def cuda_target(major: int, minor: int) -> str:
    """What compilers call a compute capability. From Hopper on, the instructions of one architecture alone (wgmma,
    TMA, tcgen05) need the suffix a.

    >>> cuda_target(8, 0), cuda_target(9, 0)
    ('sm_80', 'sm_90a')
    """
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def processes() -> tuple[int, ...]:
    """Process ids that compute on the current device, as nvidia-smi sees them. Inside a container the list may be
    empty.
    """
    command = shutil.which("nvidia-smi")
    if command is None:
        return ()
    query = [command, "--query-compute-apps=pid", "--format=csv,noheader,nounits"]
    address = _address()
    output = command_output([*query, f"--id={address}"] if address else query)
    return tuple(int(line) for line in output.splitlines() if line.strip().isdigit())


def command_output(words: list[str]) -> str:
    """What a command prints; "" when it fails, is absent or takes longer than COMMAND_LIMIT_S."""
    try:
        with spans.span("ask", Path(words[0]).name):
            return subprocess.run(
                words, capture_output=True, text=True, errors="replace", timeout=COMMAND_LIMIT_S, check=True
            ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _target(properties: Any) -> str:
    arch = str(getattr(properties, "gcnArchName", "") or "").partition(":")[0]
    if arch.startswith("gfx"):
        return arch
    major, minor = _number(properties, "major"), _number(properties, "minor")
    return cuda_target(major, minor) if major else ""


def _address() -> str:
    import torch

    if not torch.accelerator.is_available():
        return ""
    module = torch.get_device_module()
    properties = module.get_device_properties(module.current_device())
    bus, slot = getattr(properties, "pci_bus_id", None), getattr(properties, "pci_device_id", None)
    if bus is None or slot is None:
        return ""
    return f"{_number(properties, 'pci_domain_id'):08x}:{bus:02x}:{slot:02x}.0"


def _number(properties: Any, *names: str) -> int:
    for name in names:
        value = getattr(properties, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return 0
