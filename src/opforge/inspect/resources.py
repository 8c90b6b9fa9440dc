"""Read what a compiled GPU kernel uses: registers, spills, shared memory, matrix units.

Standard library only.  Text comes from ``cuobjdump`` (resource usage, SASS),
``ptxas -v`` (spills, warnings) and AMD assembly (the ``.amdgpu_metadata`` block).
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opforge.walls import tool

# --------------------------------------------------------------------------- NVIDIA: cubin

_FUNCTION = re.compile(r"^\s*Function\s+(\S+):\s*$")
_USAGE = re.compile(r"([A-Z]+)(?:\[(\d+)\])?:(\d+)")
_USAGE_NAMES = {
    "REG": "registers",
    "STACK": "stack_bytes",
    "SHARED": "shared_bytes",
    "LOCAL": "local_bytes",
    "CONSTANT": "constant_bytes",
}


def parse_resource_usage(text: str) -> dict[str, dict[str, int]]:
    """Parse ``cuobjdump --dump-resource-usage`` into kernel name -> resources.

    ``shared_bytes`` is static shared memory as the driver sees it: from sm_90 on it
    includes 1024 reserved bytes as soon as any shared memory is used, and never the
    dynamic part chosen at launch (all of it, for Triton).  ``stack_bytes`` above
    zero means local memory: spills, indexed arrays or calls.
    """
    kernels: dict[str, dict[str, int]] = {}
    current: dict[str, int] | None = None
    for line in text.splitlines():
        if match := _FUNCTION.match(line):
            current = kernels.setdefault(match[1], {})
        elif current is not None and "REG:" in line:
            for name, _bank, value in _USAGE.findall(line):
                if key := _USAGE_NAMES.get(name):
                    current[key] = current.get(key, 0) + int(value)
    return kernels


def resource_usage(cubin_path: str | Path, cuobjdump: str | Path) -> dict[str, dict[str, int]]:
    """Resources of every kernel in a cubin; see :func:`parse_resource_usage`.

    A cubin does not record spill bytes: the SASS counts are added as ``local_loads`` and
    ``local_stores`` (static instruction counts), and exact bytes need ``ptxas -v``.
    """
    kernels = parse_resource_usage(run_tool([cuobjdump, "--dump-resource-usage", cubin_path]))
    for name, sass in split_sass(disassemble(cubin_path, cuobjdump)).items():
        counts = opcode_counts(sass)
        kernel = kernels.setdefault(name, {})
        kernel["local_loads"] = _count(counts, "LDL")
        kernel["local_stores"] = _count(counts, "STL")
    return kernels


def disassemble(cubin_path: str | Path, cuobjdump: str | Path) -> str:
    """SASS of a cubin.  ``nvdisasm`` must lie beside ``cuobjdump``."""
    return run_tool([cuobjdump, "-sass", cubin_path])


def run_tool(command: list[str | Path]) -> str:
    """What a tool prints, with its own folder on PATH. Raises RuntimeError with its words when it fails."""
    tool_dir = str(Path(command[0]).resolve().parent)
    path = {"PATH": tool_dir + os.pathsep + os.environ.get("PATH", "")}
    done = tool.run(command, readable=[Path(word) for word in command[1:] if isinstance(word, Path)], environment=path)
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


# --------------------------------------------------------------------------- NVIDIA: SASS

_SASS_FUNCTION = re.compile(r"^\s*Function\s*:\s*(\S+)\s*$", re.MULTILINE)
_SASS_OPCODE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+\{?\s*(?:@!?U?P(?:T|\d+)\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)


def split_sass(text: str) -> dict[str, str]:
    """Split ``cuobjdump -sass`` output into kernel name -> SASS."""
    parts = _SASS_FUNCTION.split(text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def opcode_counts(sass_text: str) -> Counter[str]:
    """Static count of every full opcode, such as ``HGMMA.64x128x16.F32``."""
    return Counter(op.rstrip(".") for op in _SASS_OPCODE.findall(sass_text))


def _count(counts: Mapping[str, int], *bases: str) -> int:
    return sum(n for op, n in counts.items() if op.split(".", 1)[0] in bases)


MATRIX_OPCODES: dict[str, tuple[str, ...]] = {
    # The first dot-separated part must match whole: HFMA2.MMA is no matrix instruction.
    "HMMA": ("HMMA",),  # f16, bf16, tf32: sm_70 to sm_89, and mma.sync later
    "IMMA": ("IMMA",),
    "DMMA": ("DMMA",),
    "BMMA": ("BMMA",),
    "QMMA": ("QMMA",),  # fp8 mma.sync: sm_89, sm_120
    "OMMA": ("OMMA",),  # block-scaled fp4: sm_120
    "HGMMA": ("HGMMA",),  # warpgroup f16, bf16, tf32: sm_90a
    "QGMMA": ("QGMMA",),  # warpgroup fp8: sm_90a
    "IGMMA": ("IGMMA",),
    "BGMMA": ("BGMMA",),
    "UTCMMA": ("UTCHMMA", "UTCQMMA", "UTCIMMA", "UTCOMMA", "UTCMMA"),  # tcgen05: sm_100a
}
OTHER_OPCODES: dict[str, tuple[str, ...]] = {
    "FFMA": ("FFMA", "FFMA2"),
    "HFMA2": ("HFMA2",),
    "DFMA": ("DFMA",),
    "UTMALDG": ("UTMALDG",),  # TMA tensor load
    "UTMASTG": ("UTMASTG",),  # TMA tensor store
    "UBLKCP": ("UBLKCP",),  # bulk copy without a tensor map
    "LDGSTS": ("LDGSTS",),  # cp.async
    "LDSM": ("LDSM",),
    "STSM": ("STSM",),
    "LDTM": ("LDTM",),  # tensor memory
    "STTM": ("STTM",),
    "LDG": ("LDG",),
    "STG": ("STG",),
    "LDS": ("LDS",),
    "STS": ("STS",),
    "LDL": ("LDL",),  # local memory: spills or indexed arrays
    "STL": ("STL",),
    "SHFL": ("SHFL",),
    "MUFU": ("MUFU",),
    "BAR": ("BAR",),
    "CALL": ("CALL",),
    "ATOM": ("ATOM", "ATOMG", "ATOMS", "RED", "REDG"),
}


def matrix_instructions(sass_text: str) -> dict[str, int]:
    """Count matrix, TMA, async-copy and local-memory instructions; zeros left out.

    ``matrix_total`` is always there: the sum over :data:`MATRIX_OPCODES`.  Counts are
    static (instructions in the code, not executed).
    """
    counts = opcode_counts(sass_text)
    matrix = {name: _count(counts, *bases) for name, bases in MATRIX_OPCODES.items()}
    other = {name: _count(counts, *bases) for name, bases in OTHER_OPCODES.items()}
    by_name = {name: n for name, n in (matrix | other).items() if n}
    return by_name | {"matrix_total": sum(matrix.values())}


# --------------------------------------------------------------------------- NVIDIA: ptxas -v


@dataclass(frozen=True)
class PtxasReport:
    """What ``ptxas -v`` said about one kernel."""

    name: str
    arch: str
    registers: int = 0
    stack_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    shared_bytes: int = 0
    """Static shared memory, without the reserved 1024 bytes of sm_90."""
    barriers: int = 0
    constant_bytes: int = 0
    wgmma_serialized: tuple[str, ...] = ()
    """Reasons given when wgmma instructions were serialised."""
    injected_waits: int = 0
    """C7517: warpgroup.wait put in by the compiler."""
    injected_arrives: int = 0
    """C7519: warpgroup.arrive put in by the compiler."""
    warnings: tuple[str, ...] = ()


_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(.*)")
_CODED = re.compile(r"(?:\(C(\d+)\)\s*)?(.*?)\s+in(?: the)? function '([^']+)'")
_SERIALIZED = re.compile(r"instructions are serialized due to (.*?)\s+in(?: the)? function")


def resources_from_ptxas_v(text: str) -> dict[str, PtxasReport]:
    """Parse ``nvcc -Xptxas -v`` (or ``ptxas -v``) output into kernel name -> report.

    Serialised wgmma is recognised by its sentence as well as by its number (C7508 to
    C7515 among others), since the numbers move between releases and ptxas 12.x may
    print none.  Spill bytes of device functions that are not inlined are left out.
    """
    fields: dict[str, dict[str, object]] = {}
    serialized: dict[str, list[str]] = {}
    warnings: dict[str, list[str]] = {}
    injected: Counter[tuple[str, str]] = Counter()
    entry = properties = ""
    for line in text.splitlines():
        if match := _ENTRY.search(line):
            entry = properties = match[1]
            fields[entry] = {"name": entry, "arch": match[2]}
        elif match := _PROPERTIES.search(line):
            properties = match[1]
        elif (match := _SPILLS.search(line)) and properties in fields:
            stack, stores, loads = map(int, match.groups())
            fields[properties] |= {"stack_bytes": stack, "spill_store_bytes": stores, "spill_load_bytes": loads}
        elif (match := _USED.search(line)) and entry in fields:
            fields[entry] |= {
                "registers": int(match[1]),
                "barriers": _number(r"used (\d+) barriers", match[2]),
                "shared_bytes": _number(r"(\d+) bytes smem", match[2]),
                "constant_bytes": sum(map(int, re.findall(r"(\d+) bytes cmem\[\d+\]", match[2]))),
            }
        elif "ptxas" in line and (match := _CODED.match(line.split(":", 1)[-1].strip())):
            code, message, function = match[1] or "", match[2].strip(" :"), match[3]
            if reason := _SERIALIZED.search(line):
                serialized.setdefault(function, []).append(f"C{code}: {reason[1]}" if code else reason[1])
            elif "warpgroup.wait is injected" in message or code == "7517":
                injected[function, "wait"] += 1
            elif "warpgroup.arrive is injected" in message or code == "7519":
                injected[function, "arrive"] += 1
            elif "warning" in line:
                warnings.setdefault(function, []).append(message)
    return {
        name: PtxasReport(
            **values,  # type: ignore[arg-type]
            wgmma_serialized=tuple(serialized.get(name, ())),
            injected_waits=injected[name, "wait"],
            injected_arrives=injected[name, "arrive"],
            warnings=tuple(warnings.get(name, ())),
        )
        for name, values in fields.items()
    }


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    return int(match[1]) if match else 0


def ptxas_report(ptx: str, arch: str, ptxas: str | Path, *flags: str) -> dict[str, PtxasReport]:
    """Assemble PTX text once more with ``-v`` and parse what ptxas reports.

    ``arch`` is the full name, ``sm_90a`` for Triton's PTX on Hopper; pass the flags
    the kernel was built with (``--maxrregcount=...``).
    """
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        command = [str(ptxas), "-v", f"--gpu-name={arch}", *flags, str(source), "-o", str(Path(folder, "kernel.cubin"))]
        done = tool.run(command, writable=[Path(folder)])
    if done.returncode:
        raise RuntimeError(f"ptxas failed: {done.stderr.strip()}")
    return resources_from_ptxas_v(done.stderr + done.stdout)


# --------------------------------------------------------------------------- AMD

_AMD_KEYS = {
    "vgpr_count": "vgprs",
    "agpr_count": "agprs",
    "sgpr_count": "sgprs",
    "vgpr_spill_count": "vgpr_spills",
    "sgpr_spill_count": "sgpr_spills",
    "group_segment_fixed_size": "lds_bytes",
    "private_segment_fixed_size": "scratch_bytes",
    "max_flat_workgroup_size": "max_threads",
    "wavefront_size": "wavefront_size",
}
_AMD_INSTRUCTION = re.compile(r"^\s+((?:v|s|ds|buffer|global|flat|scratch)_[a-z0-9_]+)", re.MULTILINE)


def resources_from_amdgcn(text: str) -> dict[str, dict[str, int]]:
    """Parse AMD assembly into kernel name -> resources and instruction counts.

    ``vgprs`` is the total of the unified register file, ``agprs`` included (gfx90a and
    later).  ``lds_bytes`` is the static part: zero for Triton, whose LDS is sized at
    launch.  ``mfma:<opcode>`` and ``mfma_total`` count matrix instructions, in the
    whole text (Triton writes one kernel per file).
    """
    block = re.search(r"\.amdgpu_metadata\s*\n(.*?)\.end_amdgpu_metadata", text, re.DOTALL)
    kernels: dict[str, dict[str, int]] = {}
    if block:
        for entry in re.split(r"^  - ", block[1], flags=re.MULTILINE)[1:]:
            if name := re.search(r"^\s*\.name:\s+(\S+)", entry, re.MULTILINE):
                kernels[name[1]] = {key: _field(field, entry) for field, key in _AMD_KEYS.items()}
    counts = Counter(_AMD_INSTRUCTION.findall(text))
    matrix = {op: n for op, n in counts.items() if op.startswith(("v_mfma_", "v_smfmac_", "v_wmma_", "v_swmmac_"))}
    extra = {f"mfma:{op}": n for op, n in sorted(matrix.items())} | {
        "mfma_total": sum(matrix.values()),
        "scratch_loads": _prefixed(counts, "scratch_load"),
        "scratch_stores": _prefixed(counts, "scratch_store"),
        "buffer_loads": _prefixed(counts, "buffer_load"),
        "global_loads": _prefixed(counts, "global_load"),
    }
    for resources in kernels.values():
        resources |= extra
    return kernels


def _field(name: str, entry: str) -> int:
    match = re.search(rf"^\s*\.{name}:\s+(\d+)", entry, re.MULTILINE)
    return int(match[1]) if match else 0


def _prefixed(counts: Mapping[str, int], prefix: str) -> int:
    return sum(n for op, n in counts.items() if op.startswith(prefix))


# --------------------------------------------------------------------------- occupancy


@dataclass(frozen=True)
class DeviceLimits:
    """Per-SM (per-CU) limits that decide how many blocks fit."""

    name: str
    registers: int = 65536
    register_unit: int = 256
    """Registers are given to a warp in multiples of this many."""
    max_registers_per_thread: int = 255
    partitions: int = 4
    """Warp schedulers (SIMDs); each owns an equal share of the registers."""
    max_threads: int = 2048
    max_threads_per_block: int = 1024
    max_blocks: int = 32
    shared_bytes: int = 0
    max_shared_per_block: int = 0
    shared_unit: int = 128
    reserved_shared: int = 1024
    """Shared memory the system takes from every block."""
    warp_size: int = 32


def _nvidia(name: str, threads: int, blocks: int, shared_kib: int) -> DeviceLimits:
    return DeviceLimits(
        name,
        max_threads=threads,
        max_blocks=blocks,
        shared_bytes=shared_kib * 1024,
        max_shared_per_block=(shared_kib - 1) * 1024,
    )


DEVICES: dict[str, DeviceLimits] = {
    d.name: d
    for d in (
        _nvidia("sm_80", 2048, 32, 164),
        _nvidia("sm_86", 1536, 16, 100),
        _nvidia("sm_89", 1536, 24, 100),
        _nvidia("sm_90", 2048, 32, 228),
        _nvidia("sm_100", 2048, 32, 228),
        _nvidia("sm_120", 1536, 24, 100),
        DeviceLimits(
            "gfx942",
            registers=4 * 512 * 64,
            register_unit=8 * 64,
            max_registers_per_thread=512,
            max_threads=4 * 8 * 64,
            max_blocks=16,
            shared_bytes=64 * 1024,
            max_shared_per_block=64 * 1024,
            shared_unit=512,
            reserved_shared=0,
            warp_size=64,
        ),
    )
}


@dataclass(frozen=True)
class Occupancy:
    """How many blocks of a kernel one SM holds, and why not more."""

    blocks_per_sm: int
    active_warps: int
    max_warps: int
    limited_by: tuple[str, ...]
    """Any of threads, blocks, registers, shared; or ``block too large``."""
    limits: dict[str, int]
    """Blocks allowed by each resource alone."""

    @property
    def fraction(self) -> float:
        """Active warps over the most an SM can hold."""
        return self.active_warps / self.max_warps


def occupancy(
    registers_per_thread: int,
    threads_per_block: int,
    shared_bytes: int,
    device: DeviceLimits | str,
) -> Occupancy:
    """Resident blocks per SM, by the rules of NVIDIA's ``cuda_occupancy.h``.

    ``shared_bytes`` is static plus dynamic, without the reserved part (for Triton:
    ``metadata.shared``; for CUDA: the ``smem`` of ptxas plus the launch's).  On AMD,
    ``registers_per_thread`` is the unified VGPR total.
    """
    limits = DEVICES[device] if isinstance(device, str) else device
    if threads_per_block < 1:
        raise ValueError("threads_per_block must be at least 1")
    warps = -(-threads_per_block // limits.warp_size)
    max_warps = limits.max_threads // limits.warp_size
    too_large = (
        threads_per_block > limits.max_threads_per_block
        or registers_per_thread > limits.max_registers_per_thread
        or shared_bytes > limits.max_shared_per_block
    )

    allowed = {"threads": max_warps // warps, "blocks": limits.max_blocks}
    per_warp = _round_up(registers_per_thread * limits.warp_size, limits.register_unit)
    if per_warp:
        fitting = limits.registers // limits.partitions // per_warp * limits.partitions
        # The hardware checks one block as if every partition got equally many warps.
        fits = per_warp * _round_up(warps, limits.partitions) <= limits.registers
        allowed["registers"] = fitting // warps if fits else 0
    per_block = _round_up(shared_bytes + limits.reserved_shared, limits.shared_unit)
    if per_block:
        allowed["shared"] = limits.shared_bytes // per_block

    blocks = 0 if too_large else min(allowed.values())
    if too_large or blocks == 0:
        reason: tuple[str, ...] = ("block too large",)
    else:
        reason = tuple(name for name, n in allowed.items() if n == blocks)
    return Occupancy(blocks, blocks * warps, max_warps, reason, allowed)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
