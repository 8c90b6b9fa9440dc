"""The table of verdicts: what each implementation was found to be on a device, dtype by dtype."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence

from opforge.core.definition.dtypes import DTYPES
from opforge.core.evidence.record import Record
from opforge.core.evidence.verdict import Pass, Unsupported
from opforge.report.markdown_tables import CHANGED, CHANGED_MEANS, escaped, pipe_table
from opforge.report.record_text import verdict_word
from opforge.report.view import unique
from opforge.store import alike


def verdict_table(
    records: Sequence[Record], changed: Container[str] = (), adopted: Mapping[str, Collection[str]] | None = None
) -> str:
    """Markdown: a row per operator and implementation, a column per dtype. A Pass says how many cases it was checked
    on; what an implementation does not take is left empty. A device that has no record of an implementation other than
    a refusal has no row of it. Records of the ids `changed` are marked: see CHANGED.
    `adopted` says for which other sources a record was adopted, by its id (store.adopted_sources)."""
    parts = []
    for device in unique(record.device for record in records):
        known: dict[tuple[str, str, str], list[Record]] = {}
        for record in sorted(
            (record for record in records if record.device == device), key=lambda record: record.created_at
        ):
            known.setdefault((record.operator, record.implementation, record.dtype), []).append(record)
        verdicts = {
            key: counted for key, theirs in known.items() if (counted := _counts(theirs, adopted or {})) is not None
        }
        if not verdicts:
            continue
        dtypes = [dtype for dtype in DTYPES if any(key[2] == dtype for key in verdicts)]
        rows = [
            [
                escaped(operator),
                escaped(implementation),
                *(_cell(verdicts.get((operator, implementation, dtype)), changed) for dtype in dtypes),
            ]
            for operator, implementation in dict.fromkeys(
                (operator, implementation) for operator, implementation, _ in sorted(verdicts)
            )
        ]
        passes = sum(isinstance(record.verdict, Pass) for record in verdicts.values())
        dates = sorted(record.created_at[:10] for record in verdicts.values())
        parts.append(
            f"{escaped(device)}, {dates[0] if dates[0] == dates[-1] else f'{dates[0]} to {dates[-1]}'}: {passes} "
            f"Pass of {len(verdicts)}.{_legend(verdicts.values(), changed)}"
        )
        parts.append(
            pipe_table(
                ["operator", "implementation", *(escaped(dtype) for dtype in dtypes)], rows, "ll" + "l" * len(dtypes)
            )
        )
    return "\n\n".join(parts) + "\n" if parts else "No verdicts. Make some with: opforge verify --all\n"


def _counts(records: Sequence[Record], adopted: Mapping[str, Collection[str]]) -> Record | None:
    """Of one implementation's records in one dtype, oldest first, the one that says what it was found to be: of its
    newest source or code the last verification of its own, which sees more cases than what a bench verifies before it
    times; but a failure since then stands, whatever passed on another workload. None where it was refused.
    """
    # that a workload lies outside a kernel's domain says nothing of what was found inside it
    told = [record for record in records if not record.workload or not isinstance(record.verdict, Unsupported)]
    if not told or isinstance(told[-1].verdict, Unsupported):
        return None
    same = [
        record for record in told if alike(record, told[-1], adopted) and not isinstance(record.verdict, Unsupported)
    ]
    alone = [place for place, record in enumerate(same) if not record.workload]
    since = same[alone[-1] :] if alone else same
    passed = since[0] if alone else since[-1]
    return next((record for record in reversed(since) if not isinstance(record.verdict, Pass)), passed)


def _cell(record: Record | None, changed: Container[str]) -> str:
    if record is None:
        return ""
    mark = CHANGED if record.id in changed else ""
    if isinstance(record.verdict, Pass):
        return f"Pass ({len(record.verdict.checked)}){mark}"
    return f"**{escaped(verdict_word(record))}**{mark}"


def _legend(records: Iterable[Record], changed: Container[str]) -> str:
    return f"{CHANGED}: {CHANGED_MEANS}." if any(record.id in changed for record in records) else ""
