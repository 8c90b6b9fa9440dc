"""What stood around a kernel's process, where it was less than around the others of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from opforge.core.evidence.record import Record
from opforge.report.record_text import clean

WANTING = "writes not confined"
"""A wall that is missing, in the words of a level (runner.walls.sandbox.Level): none that another lacks."""


def weaker_walls(records: Sequence[Record]) -> list[str]:
    """A sentence for each implementation whose process lacked walls that most processes of its run and device had."""
    runs: dict[tuple[str, str], list[tuple[Record, str]]] = {}
    for record in records:
        if isolation := str(getattr(record.verdict, "isolation", "")):
            runs.setdefault((record.run, record.device), []).append((record, isolation))
    told: dict[str, None] = {}
    for members in runs.values():
        usual, _ = Counter(isolation for _, isolation in members).most_common(1)[0]
        for record, isolation in members:
            lacking = [wall for wall in usual.split(", ") if wall not in isolation.split(", ") and wall != WANTING]
            if lacking:
                name = f"{record.operator}/{record.implementation} {record.dtype}"
                again = f"opforge verify {record.operator} -i {record.implementation}"
                words = (
                    f"{name} ran behind weaker walls than the others of this run, without: {', '.join(lacking)}; "
                    f"verify it again: {again}"
                )
                told[clean(words)] = None
    return list(told)
