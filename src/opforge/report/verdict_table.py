"""The table of verdicts: what each implementation was found to be on a device, dtype by dtype."""

from __future__ import annotations

from collections.abc import Sequence

from opforge.core.dtypes import DTYPES
from opforge.core.record import Record
from opforge.core.verdict import Pass, Unsupported
from opforge.report.markdown_tables import escaped, pipe_table
from opforge.report.view import unique
from opforge.report.words import verdict_word


def verdict_table(records: Sequence[Record]) -> str:
    """Markdown: a row per operator and implementation, a column per dtype; the newest record of each counts. A Pass says how many cases it was checked
    on; what an implementation does not take is left empty. A device that has no record of an implementation other than a refusal has no row of it."""
    parts = []
    for device in unique(record.device for record in records):
        newest: dict[tuple[str, str, str], Record] = {}
        for record in sorted((record for record in records if record.device == device), key=lambda record: record.created_at):
            known = newest.get((record.operator, record.implementation, record.dtype))
            # that a workload lies outside a kernel's domain says nothing of what was found inside it
            if known is None or not record.workload or not isinstance(record.verdict, Unsupported):
                newest[record.operator, record.implementation, record.dtype] = record
        found = {key: record for key, record in newest.items() if not isinstance(record.verdict, Unsupported)}
        if not found:
            continue
        dtypes = [dtype for dtype in DTYPES if any(key[2] == dtype for key in found)]
        rows = [
            [escaped(operator), escaped(implementation), *(_cell(found.get((operator, implementation, dtype))) for dtype in dtypes)]
            for operator, implementation in dict.fromkeys((operator, implementation) for operator, implementation, _ in sorted(found))
        ]
        passes = sum(isinstance(record.verdict, Pass) for record in found.values())
        dates = sorted(record.created_at[:10] for record in found.values())
        parts.append(f"{escaped(device)}, {dates[0] if dates[0] == dates[-1] else f'{dates[0]} to {dates[-1]}'}: {passes} Pass of {len(found)}.")
        parts.append(pipe_table(["operator", "implementation", *(escaped(dtype) for dtype in dtypes)], rows, "ll" + "l" * len(dtypes)))
    return "\n\n".join(parts) + "\n" if parts else "No verdicts. Make some with: opforge verify --all\n"


def _cell(record: Record | None) -> str:
    if record is None:
        return ""
    if isinstance(record.verdict, Pass):
        return f"Pass ({len(record.verdict.checked)})"
    return f"**{escaped(verdict_word(record))}**"
