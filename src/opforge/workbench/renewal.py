"""What to measure again on a device, what users would be given wrongly first: the order of `make gpu`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from opforge.core.definition.operator import Operator, Workload
from opforge.core.evidence.record import Record
from opforge.core.evidence.verdict import Inaccurate, Pass

WRONGLY, MISSING, STALE, NEVER, UNSTEADY, OLD = (
    "dispatch would pick a stale row",
    "rows are missing",
    "stale rows",
    "never measured",
    "unsteady rows",
    "all rows are of today's code",
)
NEEDS = (WRONGLY, MISSING, STALE, NEVER, UNSTEADY, OLD)
"""Why a batch is measured, most urgent first."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One call of `bench`: those workloads and dtypes of an operator that have the same need, with all its
    implementations, which are to be timed side by side.

    calls     names of workloads, each with a dtype
    need      one of NEEDS
    oldest    ISO time of its oldest row, "" where a row is missing
    rows      implementations × calls
    """

    operator: str
    calls: tuple[tuple[str, str], ...]
    need: str
    oldest: str
    rows: int

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Each once, in the operator's order."""
        return tuple(dict.fromkeys(dtype for _, dtype in self.calls))

    @property
    def workloads(self) -> tuple[str, ...]:
        """Each once, in the operator's order."""
        return tuple(dict.fromkeys(workload for workload, _ in self.calls))


def batches(
    operators: Iterable[Operator],
    implementations: Callable[[str], Sequence[str]],
    workloads: Callable[[Operator], Sequence[Workload]],
    records: Callable[[str], Sequence[Record]],
    current: Callable[[str, Record], bool],
    dtypes: Collection[str] = (),
    before: str = "",
) -> list[Batch]:
    """The batches of these operators, most urgent first; those of equal need by the number of calls, then the
    oldest first.

    implementations   of an operator, those that this device can run
    workloads         of an operator, those sized for this device
    records           of an operator on this device, in any order
    current           whether a record of an operator speaks of what is there now
    before            an ISO time: calls whose rows are all there and no older than this are left out; "": none are
    """
    planned: list[Batch] = []
    for operator in operators:
        names = implementations(operator.name)
        newest = _newest(records(operator.name))
        calls = [
            (workload.name, dtype)
            for dtype in operator.dtypes
            if not dtypes or dtype in dtypes
            for workload in workloads(operator)
            if operator.takes(workload, dtype)
        ]
        rows = {(workload, dtype): [newest.get((name, workload, dtype)) for name in names] for workload, dtype in calls}
        needs = {
            call: _need(operator.name, known, current)
            for call, known in rows.items()
            if not before or any(record is None or record.created_at < before for record in known)
        }
        for need in NEEDS if names else ():
            mine = tuple(call for call in needs if needs[call] == need)
            dates = [record.created_at if record is not None else "" for call in mine for record in rows[call]]
            if mine:
                planned.append(
                    Batch(
                        operator=operator.name,
                        calls=mine,
                        need=need,
                        oldest=min(dates, default=""),
                        rows=len(names) * len(mine),
                    )
                )
    return sorted(
        planned,
        key=lambda batch: (
            NEEDS.index(batch.need),
            -len(batch.calls) if batch.need != OLD else 0,
            batch.oldest,
            batch.operator,
        ),
    )


def _newest(records: Sequence[Record]) -> dict[tuple[str, str, str], Record]:
    newest: dict[tuple[str, str, str], Record] = {}
    for record in sorted(records, key=lambda record: record.created_at):
        if record.workload:
            newest[record.implementation, record.workload, record.dtype] = record
            continue
        # it did not come as far as a workload: this is what is known of all of them, unless it is a verification alone,
        # which takes no time away
        if not isinstance(record.verdict, Pass | Inaccurate):
            for key in [key for key in newest if key[0] == record.implementation and key[2] == record.dtype]:
                newest[key] = record
        newest[record.implementation, "", record.dtype] = record
    return _Newest(newest)


class _Newest(dict[tuple[str, str, str], Record]):
    """By implementation, workload and dtype; where a workload has none, the verification alone counts: what is refused,
    or unsupported, has no time.
    """

    def get(self, key: tuple[str, str, str], default: Record | None = None) -> Record | None:  # type: ignore[override]
        return super().get(key) or super().get((key[0], "", key[2])) or default


def _need(operator: str, rows: Sequence[Record | None], current: Callable[[str, Record], bool]) -> str:
    """What one workload in one dtype needs."""
    known = [record for record in rows if record is not None]
    timed = [record for record in known if isinstance(record.verdict, Pass) and record.timing is not None]
    best = min(timed, key=lambda record: record.timing.median_s if record.timing else 0.0, default=None)
    if best is not None and (not current(operator, best) or (best.timing is not None and best.timing.suspect)):
        return WRONGLY
    if not timed:
        return NEVER
    if len(known) < len(rows):
        return MISSING
    if not all(current(operator, record) for record in known):
        return STALE
    return OLD if all(record.timing is None or record.timing.steady for record in known) else UNSTEADY
