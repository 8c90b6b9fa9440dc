"""An Inspection in words, for a terminal."""

from __future__ import annotations

from opforge.core.evidence.inspection import Inspection, KernelUse
from opforge.core.language import units


def inspection_lines(found: Inspection) -> list[str]:
    """One line for what was compiled, then a few for each kernel."""
    axes = ", ".join(f"{name}={value}" for name, value in found.axes.items())
    lines = [
        f"{found.operator}/{found.implementation} for {found.target}, {found.dtype}, {axes}, {found.config}; "
        f"compiled in {units.seconds(found.compile_s)}"
    ]
    for kernel in found.kernels:
        lines += _kernel(kernel)
    return lines


def _kernel(kernel: KernelUse) -> list[str]:
    shared = "chosen at launch" if kernel.shared_bytes is None else units.size(kernel.shared_bytes)
    threads = "unknown" if kernel.threads is None else str(kernel.threads)
    spilled = (kernel.spill_store_bytes or 0) + (kernel.spill_load_bytes or 0)
    spills = (
        f"{spilled} bytes"
        if spilled
        else f"{kernel.local_instructions} local-memory instructions"
        if kernel.spills
        else "none"
    )
    lines = [
        f"  {kernel.kernel}",
        f"    registers {kernel.registers} a thread · spills {spills} · stack {kernel.stack_bytes} B · shared "
        f"{shared} · threads {threads}",
    ]
    if kernel.residency is not None:
        seat = kernel.residency
        bound = "at most " if seat.at_most else ""
        warps = f"{seat.active_warps} of {seat.max_warps} warps"
        lines.append(
            f"    occupancy {bound}{units.percent(seat.fraction)}: {seat.blocks_per_unit} blocks, {warps}; limited "
            f"by {', '.join(seat.limited_by)}"
        )
    matrix = ", ".join(f"{count} {name}" for name, count in kernel.matrix_instructions.items()) or "none"
    lines.append(f"    matrix instructions {matrix}")
    if kernel.other_instructions:
        lines.append(
            "    other instructions "
            f"{', '.join(f'{count} {name}' for name, count in kernel.other_instructions.items())}"
        )
    lines += [f"    warning {warning}" for warning in kernel.warnings]
    return lines
