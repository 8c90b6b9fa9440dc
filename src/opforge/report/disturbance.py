"""A run on a machine that others were using: said once, in place of a line for every time."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from opforge.core.evidence.record import Record
from opforge.core.evidence.timing import MOSTLY, UNSTEADY_WORD
from opforge.core.language import units
from opforge.report.record_text import clean, notes
from opforge.report.view import timing_of, unique


def disturbance(records: Sequence[Record]) -> str:
    """One sentence for records most of whose times were disturbed by other processes; "" for others, and for one time
    alone.
    """
    shares = {record.id: timing.disturbed for record in records if (timing := timing_of(record)) is not None}
    over = [share for share in shares.values() if share > MOSTLY]
    if len(over) < 2 or 2 * len(over) < len(shares):
        return ""
    doubt = (
        "no ratio here is certain"
        if len(over) == len(shares)
        else f"{len(over)} of {len(shares)} times are unsteady, and no ratio is made of them"
    )
    names = " ".join(unique(clean(record.operator) for record in records if record.id in shares))
    return (
        f"others had the processors in {units.percent(median(over))} of the turns: {doubt}; repeat with fewer "
        f"processes beside it: opforge bench {names}"
    )


def notes_beside(record: Record, told: str) -> tuple[str, ...]:
    """A record's notes, without what follows from a disturbance that was `told` for all."""
    timing = timing_of(record)
    if not told or timing is None or not timing.disturbed > MOSTLY:
        return notes(record)
    return tuple(note for note in notes(record) if not note.startswith(UNSTEADY_WORD))
