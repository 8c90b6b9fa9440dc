"""Reads the artefacts of an offline compilation: cubins with cuobjdump and ptxas, AMD assembly as text."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from opforge.backends import Artefact
from opforge.core.definition.device import DeviceSpec
from opforge.core.evidence.inspection import Inspection, KernelUse, Residency
from opforge.inspect.resources import (
    DEVICES,
    MATRIX_OPCODES,
    DeviceLimits,
    PtxasReport,
    disassemble,
    matrix_instructions,
    occupancy,
    parse_resource_usage,
    ptxas_report,
    resources_from_amdgcn,
    resources_from_ptxas_v,
    run_tool,
    split_sass,
)
from opforge.inspect.tools import assembler, tool

# how the dtypes stand in mangled C++ names
MANGLED = {"float16": "6__half", "bfloat16": "13__nv_bfloat16"}
# operands in FP8 come with results in other dtypes: a kernel's name holds both
FP8 = {"float8_e4m3fn": "E4M3", "float8_e5m2": "E5M2"}
CHOSEN_AT_LAUNCH = re.compile(r"OPFORGE_DYNAMIC_SHARED\s*\(|extern\s+__shared__")


def kernels_of(artefact: Artefact, target: str, dtype: str, source: Path) -> tuple[KernelUse, ...]:
    """What each kernel in an artefact uses. Kernels that a C++ file instantiates for other dtypes are left out.

    Artefacts that hold no GPU code (a .so for the host) give nothing.
    """
    if artefact.kind == "cubin":
        return _cubin(artefact, target, dtype, source)
    if artefact.kind == "amdgcn":
        return _amdgcn(artefact, target)
    return ()


def _cubin(artefact: Artefact, target: str, dtype: str, source: Path) -> tuple[KernelUse, ...]:
    cuobjdump = tool("cuobjdump")
    usage = parse_resource_usage(run_tool([cuobjdump, "--dump-resource-usage", artefact.path]))
    code = split_sass(disassemble(artefact.path, cuobjdump))
    most_threads = _max_threads(run_tool([cuobjdump, "--dump-elf", artefact.path]))
    reports = _reports(artefact)
    generated = artefact.path.with_suffix(".cu")
    unknown_shared = not artefact.facts and CHOSEN_AT_LAUNCH.search(
        (generated if generated.is_file() else source).read_text(encoding="utf-8")
    )
    uses: list[KernelUse] = []
    for name in of_dtype(list(usage), dtype):
        counts = matrix_instructions(code.get(name, ""))
        report = reports.get(name)
        shared = None if unknown_shared else _shared(artefact, usage[name], report)
        threads = artefact.threads or most_threads.get(name)
        registers = usage[name].get("registers", 0)
        uses.append(
            KernelUse(
                kernel=readable(name),
                registers=registers,
                stack_bytes=usage[name].get("stack_bytes", 0),
                spill_store_bytes=report.spill_store_bytes if report else None,
                spill_load_bytes=report.spill_load_bytes if report else None,
                shared_bytes=shared,
                threads=threads,
                residency=_residency(registers, threads, shared, target),
                matrix_instructions={key: count for key, count in counts.items() if key in MATRIX_OPCODES},
                other_instructions={
                    key: count for key, count in counts.items() if key not in MATRIX_OPCODES and key != "matrix_total"
                },
                local_instructions=counts.get("LDL", 0) + counts.get("STL", 0),
                warnings=_warnings(report),
            )
        )
    return tuple(uses)


def _reports(artefact: Artefact) -> Mapping[str, PtxasReport]:
    """What ptxas said of each kernel: from the compiler's log, or by assembling the PTX beside the cubin once more."""
    if artefact.log:
        return resources_from_ptxas_v(artefact.log)
    ptx = artefact.path.with_suffix(".ptx")
    if not ptx.is_file():
        return {}
    text = ptx.read_text(encoding="utf-8")
    arch = re.search(r"^\s*\.target\s+(\w+)", text, re.MULTILINE)
    return ptxas_report(text, arch[1], assembler(arch[1])) if arch else {}


def _shared(artefact: Artefact, usage: Mapping[str, int], report: PtxasReport | None) -> int:
    """Shared memory per block in bytes: what the launch reserves where that is known, else what the kernel declares."""
    if artefact.facts and "shared_bytes" in artefact.facts:
        return int(artefact.facts["shared_bytes"])
    return report.shared_bytes if report else usage.get("shared_bytes", 0)


def _warnings(report: PtxasReport | None) -> tuple[str, ...]:
    if report is None:
        return ()
    warnings = [f"wgmma instructions are serialized due to {reason}" for reason in report.wgmma_serialized]
    if report.injected_waits:
        warnings.append(f"the compiler put in {report.injected_waits} warpgroup.wait")
    return (*warnings, *report.warnings)


def _max_threads(elf: str) -> dict[str, int]:
    """Kernel name → threads per block it was compiled for, from the `.nv.info` sections of an ELF dump.

    >>> said = ".nv.info.k\\n\\tAttribute:\\tEIATTR_MAX_THREADS\\n"
    >>> said += "\\tFormat:\\tEIFMT_SVAL\\n\\tValue:\\t0x100 0x1 0x1\\n"
    >>> _max_threads(said)
    {'k': 256}
    """
    most_threads: dict[str, int] = {}
    name, awaited = "", False
    for line in elf.splitlines():
        if line.startswith(".nv.info."):
            name = line.removeprefix(".nv.info.").strip()
        elif "EIATTR_MAX_THREADS" in line or "EIATTR_REQNTID" in line:
            awaited = True
        elif awaited and (extents := re.search(r"Value:\s*(0x\w+) (0x\w+) (0x\w+)", line)):
            x, y, z = (int(extent, 16) for extent in extents.groups())
            most_threads[name], awaited = x * y * z, False
    return most_threads


def on_device(found: Inspection, spec: DeviceSpec) -> Inspection:
    """With the residency that a descriptor's own registers, threads and shared memory allow, where it is of a target
    whose rules are known.
    """
    limits = _limits(found.target)
    if limits is None:
        return found
    own = {
        "registers": spec.registers_per_unit,
        "max_threads": spec.threads_per_unit,
        "max_threads_per_block": spec.threads_per_block,
        "max_blocks": min(spec.blocks_per_unit or limits.max_blocks, limits.max_blocks),
        "shared_bytes": spec.shared_bytes_per_unit,
        "max_shared_per_block": spec.shared_bytes_per_block,
    }
    known: dict[str, Any] = {name: value for name, value in own.items() if value > 0}
    limits = replace(limits, **known)
    kernels = (
        replace(kernel, residency=_seats(kernel.registers, kernel.threads, kernel.shared_bytes, limits))
        for kernel in found.kernels
    )
    return replace(found, kernels=tuple(kernels))


def _limits(target: str) -> DeviceLimits | None:
    return DEVICES.get(target) or DEVICES.get(target.rstrip("a"))


def _residency(registers: int, threads: int | None, shared: int | None, target: str) -> Residency | None:
    return _seats(registers, threads, shared, _limits(target))


def _seats(registers: int, threads: int | None, shared: int | None, limits: DeviceLimits | None) -> Residency | None:
    if limits is None or threads is None:
        return None
    resident = occupancy(registers, threads, shared or 0, limits)
    return Residency(
        blocks_per_unit=resident.blocks_per_sm,
        active_warps=resident.active_warps,
        max_warps=resident.max_warps,
        limited_by=resident.limited_by,
        at_most=shared is None,
    )


def _amdgcn(artefact: Artefact, target: str) -> tuple[KernelUse, ...]:
    uses: list[KernelUse] = []
    for name, use in resources_from_amdgcn(artefact.path.read_text(encoding="utf-8")).items():
        shared = int((artefact.facts or {}).get("shared_bytes", use.get("lds_bytes", 0)))
        threads = artefact.threads or use.get("max_threads")
        # an AMD spill is one 32-bit register of one lane
        spilled = 4 * (use.get("vgpr_spills", 0) + use.get("sgpr_spills", 0))
        uses.append(
            KernelUse(
                kernel=name,
                registers=use.get("vgprs", 0),
                stack_bytes=use.get("scratch_bytes", 0),
                spill_store_bytes=spilled,
                spill_load_bytes=spilled,
                shared_bytes=shared,
                threads=threads,
                residency=_residency(use.get("vgprs", 0), threads, shared, target),
                matrix_instructions={
                    key.removeprefix("mfma:"): count for key, count in use.items() if key.startswith("mfma:")
                },
                other_instructions={key: use[key] for key in ("buffer_loads", "global_loads") if use.get(key)},
                local_instructions=use.get("scratch_loads", 0) + use.get("scratch_stores", 0),
                warnings=(),
            )
        )
    return tuple(uses)


def of_dtype(names: Sequence[str], dtype: str) -> list[str]:
    """The kernels of a C++ file that are instantiated for a dtype, by their mangled names; all of them when none says.

    >>> names = ["_Z1kIfEvPT_", "_Z1kI6__halfEvPT_"]
    >>> of_dtype(names, "float16"), of_dtype(names, "float32")
    (['_Z1kI6__halfEvPT_'], ['_Z1kIfEvPT_'])
    """
    if dtype in FP8:
        return [name for name in names if FP8[dtype] in name] or list(names)
    if dtype in MANGLED:
        return [name for name in names if MANGLED[dtype] in name] or list(names)
    return [name for name in names if not any(mark in name for mark in MANGLED.values())] or list(names)


def readable(name: str) -> str:
    """A kernel's name without mangling, namespace and parameters, where c++filt is there to read it."""
    if not name.startswith("_Z") or shutil.which("c++filt") is None:
        return name
    # `-p` leaves the parameters out
    plain = subprocess.run(["c++filt", "-p", name], capture_output=True, text=True, check=False).stdout.strip() or name
    return re.sub(r"^void |\(anonymous namespace\)::|\b_GLOBAL__N_\w+::", "", plain)
