"""Devices as data: the descriptors that ship with opforge, those of the user, and the one that describes this
machine.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from opforge.core.definition.device import Ceiling, DeviceSpec
from opforge.core.evidence.record import from_json
from opforge.core.language.errors import UsageError
from opforge.machine import accelerator, host_hardware
from opforge.machine.saved_ceilings import load_ceilings

CPU_CAPABILITIES = (
    "sse4_2",
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512_bf16",
    "avx512_fp16",
    "avx512_vnni",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "sve",
)


def descriptors(extra: Iterable[Path] = ()) -> dict[str, DeviceSpec]:
    """Every known DeviceSpec by name: those of the package, then those in the `*.json` of `extra` folders, which win.

    Raises UsageError that names the file for one that is not a DeviceSpec.
    """
    by_name = dict(_shipped())
    for folder in extra:
        for file in sorted(folder.glob("*.json")):
            spec = _parse(file.read_text(encoding="utf-8"), str(file))
            by_name[spec.name] = spec
    return by_name


def descriptor(file: Path) -> DeviceSpec:
    """The DeviceSpec in a file. Raises UsageError that names the file for one that is none."""
    return _parse(file.read_text(encoding="utf-8"), str(file))


def detect(device: str, *, extra: Iterable[Path] = (), root: Path = host_hardware.ROOT) -> DeviceSpec:
    """The DeviceSpec of this machine's `device` (a torch device type), with the ceilings that were measured on it.

    A CPU is built from /proc and /sys. An accelerator is found by its name among the descriptors; what the driver
    reports (units, memory, cache) overrides the descriptor, and a part of a chip (MIG) loses the whole chip's rates.
    An unknown accelerator is described by what torch reports, with no rates. Ceilings measured here
    (`measure_ceilings`) replace those that ship with the descriptor. Raises EnvironmentLacks when torch sees no such
    device.
    """
    spec = (
        _processor(host_hardware.look(root))
        if device == "cpu"
        else _accelerator(accelerator.look(device), descriptors(extra))
    )
    measured = load_ceilings(spec)
    names = {ceiling.name for ceiling in measured}
    return replace(spec, ceilings=(*measured, *(ceiling for ceiling in spec.ceilings if ceiling.name not in names)))


@functools.cache
def _shipped() -> dict[str, DeviceSpec]:
    by_name = {}
    for file in sorted(files("opforge.machine").joinpath("devices").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".json"):
            spec = _parse(file.read_text(encoding="utf-8"), file.name)
            by_name[spec.name] = spec
    return by_name


def _parse(text: str, name: str) -> DeviceSpec:
    try:
        spec = from_json(json.loads(text))
    except (ValueError, UsageError) as error:
        raise UsageError(
            f"{name} is not a device descriptor: {error} Compare it with a shipped one: opforge machine --json"
        ) from error
    if not isinstance(spec, DeviceSpec) or not all(isinstance(ceiling, Ceiling) for ceiling in spec.ceilings):
        raise UsageError(
            f'{name} holds no DeviceSpec. It must be one JSON object with "type": "DeviceSpec"; compare with: '
            "opforge machine --json"
        )
    return spec


def _processor(here: host_hardware.HostHardware) -> DeviceSpec:
    return replace(
        _shipped()["cpu"],
        name=f"cpu-{_slug(here.model)}",
        units=here.cores,
        vector_bytes=here.vector_bytes,
        registers_per_unit=32 if here.vector_bytes == 64 or "asimd" in here.flags else 16,
        threads_per_unit=1,
        blocks_per_unit=1,
        cache_bytes=here.cache_bytes,
        memory_bytes=here.memory_bytes,
        capabilities=tuple(name for name in CPU_CAPABILITIES if name in here.flags),
        source=f"detected: {here.label}; no rates are known but those measured here",
        matches=(here.model,),
    )


def _accelerator(here: accelerator.Accelerator, known: dict[str, DeviceSpec]) -> DeviceSpec:
    name = here.name.lower()
    matches = [
        (len(match), spec)
        for spec in known.values()
        for match in spec.matches
        if spec.kind == here.kind and match.lower() in name
    ]
    if not matches:
        return _unknown(here)
    spec = max(matches, key=lambda found: found[0])[1]
    part = bool(spec.units and here.units and here.units < spec.units)
    spec = replace(
        spec,
        units=here.units or spec.units,
        cache_bytes=here.cache_bytes if here.cache_bytes > spec.cache_bytes or part else spec.cache_bytes,
        memory_bytes=here.memory_bytes or spec.memory_bytes,
    )
    if not part:
        return spec
    source = (
        f"{spec.source}; {here.units} units of this device are visible, fewer than the whole chip has, so the "
        "chip's rates are left out"
    )
    return replace(spec, nominal_bytes_per_s=0.0, nominal_flops_per_s={}, ceilings=(), source=source)


def _unknown(here: accelerator.Accelerator) -> DeviceSpec:
    return DeviceSpec(
        name=_slug(here.name),
        kind=here.kind,
        target=here.target,
        units=here.units,
        warp_size=here.warp_size,
        vector_bytes=0,
        registers_per_unit=here.registers_per_unit,
        shared_bytes_per_unit=here.shared_bytes_per_unit,
        shared_bytes_per_block=here.shared_bytes_per_block,
        threads_per_unit=here.threads_per_unit,
        blocks_per_unit=0,
        cache_bytes=here.cache_bytes,
        memory_bytes=here.memory_bytes,
        nominal_bytes_per_s=0.0,
        nominal_flops_per_s={},
        capabilities=(),
        source="reported by torch; no descriptor knows this device, and 0 stands for unknown. Measure its ceilings "
        "with: opforge machine",
        matches=(here.name,),
    )


def _slug(name: str) -> str:
    """A device's name as a file name: lower case, runs of anything but letters, digits and dots become one dash."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
