"""What compilers made of one implementation for several devices: a table for a terminal, and a page."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence

from opforge.core.evidence.inspection import ForDevice, KernelUse
from opforge.core.language import units
from opforge.report.record_text import clean

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:76rem;margin:2rem auto;padding:0 1rem;color:#1d1d1f}"
    "table{border-collapse:collapse}td,th{padding:.3rem .8rem;text-align:right;border-bottom:1px solid #ddd}"
    "td:first-child,th:first-child{text-align:left}"
)

MOST = 3
"""So many different values of one property stand in a cell, of a file with several kernels."""


def device_cells(found: Sequence[ForDevice]) -> list[list[str]]:
    """Rows of cells: a head with the devices' names, then a row for each property; several kernels' in one cell."""

    def row(name: str, said: Callable[[KernelUse], str]) -> list[str]:
        return [name, *(_together([said(each) for each in _kernels(item)]) for item in found)]

    return [
        ["", *(clean(item.device) for item in found)],
        ["target", *(clean(item.target) for item in found)],
        row("registers a thread", lambda kernel: str(kernel.registers)),
        row("spills", _spills),
        row("stack", lambda kernel: f"{kernel.stack_bytes} B"),
        row(
            "shared memory",
            lambda kernel: "at launch" if kernel.shared_bytes is None else units.size(kernel.shared_bytes),
        ),
        row("threads a block", lambda kernel: "unknown" if kernel.threads is None else str(kernel.threads)),
        row("occupancy", _occupancy),
        row("kept from more by", lambda kernel: ", ".join(kernel.residency.limited_by) if kernel.residency else "–"),
        ["blocks at once", *("–" if item.resident_blocks is None else str(item.resident_blocks) for item in found)],
        row("matrix instructions", lambda kernel: str(sum(kernel.matrix_instructions.values()))),
        row("other instructions", lambda kernel: str(sum(kernel.other_instructions.values()))),
        ["predicted limiter", *(item.limiter or "unknown" for item in found)],
        ["no call takes less than", *(units.seconds(item.least_s) if item.least_s else "–" for item in found)],
    ]


def device_lines(found: Sequence[ForDevice]) -> list[str]:
    """For a terminal: the table in columns, then why a device has none."""
    table = device_cells(found)
    widths = [max(len(cells[place]) for cells in table) for place in range(len(table[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if not place else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        for cells in table
    ]
    return [*lines, *_reasons(found)]


def device_page(title: str, found: Sequence[ForDevice]) -> str:
    """The same as a page of HTML that needs nothing else. Everything is shown as text, never as markup."""
    head, *rows = [[html.escape(cell) for cell in cells] for cells in device_cells(found)]
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>" for cells in rows)
    said = "".join(f"<p>{html.escape(line)}</p>" for line in _reasons(found))
    top = "<tr>" + "".join(f"<th>{cell}</th>" for cell in head) + "</tr>"
    name = html.escape(clean(title))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title><style>{STYLE}</style>'
        f"<h1>{name}</h1><table>{top}{body}</table>{said}</html>\n"
    )


def _together(words: Sequence[str]) -> str:
    """Different ones side by side; of many the shortest and the longest."""
    different = sorted(set(words), key=lambda word: (len(word), word))
    if len(different) > MOST:
        return f"{different[0]} to {different[-1]}"
    return ", ".join(different) or "–"


def _kernels(item: ForDevice) -> Sequence[KernelUse]:
    return item.found.kernels if item.found is not None else ()


def _reasons(found: Sequence[ForDevice]) -> list[str]:
    lines = []
    for item in found:
        if item.found is None:
            lines.append(f"{clean(item.device)}: not compiled: {clean(item.reason)[:400]}")
        elif item.reason:
            lines.append(f"{clean(item.device)}: {clean(item.reason)[:400]}")
        elif not item.found.kernels:
            lines.append(f"{clean(item.device)}: compiled, and there is no GPU code in it to read")
    return lines


def _spills(kernel: KernelUse) -> str:
    if not kernel.spills:
        return "none"
    stored = (kernel.spill_store_bytes or 0) + (kernel.spill_load_bytes or 0)
    return f"{stored} B" if stored else f"{kernel.local_instructions} instructions"


def _occupancy(kernel: KernelUse) -> str:
    if kernel.residency is None:
        return "–"
    return ("≤ " if kernel.residency.at_most else "") + units.percent(kernel.residency.fraction)
