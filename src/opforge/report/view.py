"""What may be shown of records, and how they belong together: the rules that every page and table shares.

A time is shown only beside a Pass; a speed-up only where both sides were timed in one run, on one workload and dtype.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from opforge.core.definition.implementation import DEFINITION, EAGER
from opforge.core.evidence import paired_times
from opforge.core.evidence.record import Record, terms_of, to_json
from opforge.core.evidence.timing import Timing
from opforge.core.evidence.timing_terms import CALL
from opforge.core.evidence.verdict import FAILURES, REFUSED, Inaccurate, LibraryFallback, Pass, may_be_timed

BASELINE = EAGER
"""The implementation that speed-ups are against."""

_MEMORY_WORDS = ("memory", "copy", "read", "write", "stream", "bandwidth", "cache", "byte")


def timing_of(record: Record) -> Timing | None:
    """The record's timing if it may be shown: there is a Pass, or a baseline that is known to be inaccurate, and every
    sample is a positive, finite number of seconds.
    """
    timing = record.timing
    if timing is None or not may_be_timed(record.verdict, record.backend) or not timing.samples_s:
        return None
    return timing if all(math.isfinite(sample) and sample > 0 for sample in timing.samples_s) else None


def sound(record: Record) -> bool:
    """Whether the record has a time that may be compared: one that may be shown and that nothing speaks against."""
    timing = timing_of(record)
    return timing is not None and timing.suspect is None


def steady(record: Record) -> bool:
    """Whether the record's time may be a side of a ratio: it is sound, and the machine was quiet enough for it. Else
    the ratio is unsure.
    """
    timing = timing_of(record)
    return timing is not None and sound(record) and timing.steady


def ratio_of(one: Record | None, other: Record | None) -> float | None:
    """Time of one record / time of the other, turn by turn where both were kept so; None where one has no time."""
    first, second = (timing_of(record) if record is not None else None for record in (one, other))
    return paired_times.ratio(first, second) if first is not None and second is not None else None


def certain(one: Record | None, other: Record | None) -> bool:
    """Whether the ratio of two records of one run may be told (core.evidence.paired_times): both are sound, and steady
    alone or turn by turn.
    """
    if one is None or other is None or not (sound(one) and sound(other)):
        return False
    first, second = timing_of(one), timing_of(other)
    return first is not None and second is not None and paired_times.certain(first, second)


def roof_of(record: Record) -> float | None:
    """The least time in seconds that the device's ceilings allow, where it is known and a positive number."""
    return record.roof_s if record.roof_s is not None and math.isfinite(record.roof_s) and record.roof_s > 0 else None


def of_roof(record: Record) -> float | None:
    """roof_s / median: 1.0 is all that the device can do."""
    timing, roof = timing_of(record), roof_of(record)
    return roof / timing.median_s if timing is not None and roof is not None else None


def memory_bound(record: Record) -> bool:
    """Whether the ceiling that limits this record is one of memory. Without a limiter, by arithmetic intensity: below
    10 FLOP/byte.
    """
    if record.limiter is None:
        return record.cost.intensity < 10
    return any(word in record.limiter.lower() for word in _MEMORY_WORDS)


def verdict_key(record: Record) -> str:
    """Equal for records that carry the same verdict on the same implementation and dtype; NaNs inside do not matter."""
    return json.dumps(
        [record.operator, record.implementation, record.dtype, record.device, to_json(record.verdict)], sort_keys=True
    )


@dataclass(frozen=True, kw_only=True)
class Group:
    """The records that may be compared: one run, operator, workload, dtype, device and terms
    (core.evidence.timing_terms). Timed ones first, fastest first; those whose time is suspect stand after the others.
    They and those that were not steady lead nothing and have no speed-up.
    """

    operator: str
    workload: str
    dtype: str
    device: str
    run: str
    records: tuple[Record, ...]
    terms: str = CALL

    @cached_property
    def timed(self) -> tuple[Record, ...]:
        """The records with a time that may be shown."""
        return tuple(record for record in self.records if timing_of(record) is not None)

    @cached_property
    def baseline_s(self) -> float | None:
        """The median of BASELINE in this group, in seconds; of its fastest config where there are several."""
        medians = [
            timing.median_s
            for record in self.timed
            if record.implementation == BASELINE and sound(record) and (timing := timing_of(record)) is not None
        ]
        return min(medians, default=None)

    def speedup(self, record: Record) -> float | None:
        """Time of the baseline / this one's; None where either was not timed here, or the ratio is not certain: then it
        is `unsure`.
        """
        ratio = self._ratio(record)
        return ratio if ratio is not None and self._sure(record) else None

    def unsure(self, record: Record) -> bool:
        """Whether there are two times of which no ratio is made, because it would not be certain."""
        return self._ratio(record) is not None and not self._sure(record)

    @cached_property
    def _baseline(self) -> Record | None:
        return next((record for record in self.timed if record.implementation == BASELINE and sound(record)), None)

    def _ratio(self, record: Record) -> float | None:
        return ratio_of(self._baseline, record) if sound(record) else None

    def _sure(self, record: Record) -> bool:
        return certain(self._baseline, record)

    @cached_property
    def best_alternative(self) -> Record | None:
        """The fastest of what a user would call if there were nothing else: torch eager, torch.compile, a library.
        Accurate or not: it says so itself.
        """
        return next((record for record in self.timed if alternative(record) and sound(record)), None)

    @cached_property
    def best_of_ours(self) -> Record | None:
        """The fastest of all others."""
        return next(
            (
                record
                for record in self.timed
                if not alternative(record) and column(record) != COLUMN_OF_DEFINITION and sound(record)
            ),
            None,
        )

    @cached_property
    def over_alternative(self) -> float | None:
        """Time of the best alternative / that of the best of ours; None where either was not timed here."""
        return ratio_of(self.best_alternative, self.best_of_ours)

    @cached_property
    def certain_of_alternative(self) -> bool:
        """Whether `over_alternative` may be told: of any other ratio no headline, colour or mean is made."""
        return certain(self.best_alternative, self.best_of_ours)

    @cached_property
    def leaders(self) -> tuple[Record, ...]:
        """The fastest, and every one that cannot be told to be slower by these samples; () where the machine was too
        uneven to say.
        """
        timed = [record for record in self.timed if sound(record)]
        if not timed:
            return ()
        first, *others = timed
        # who seems to be the fastest and cannot be held against the others: then nobody is
        if not steady(first) and not all(certain(first, other) for other in others):
            return ()
        return (first, *(other for other in others if certain(first, other) and _as_fast(first, other)))

    def label(self, record: Record) -> str:
        """The implementation's name; with its config where the group holds several of that name."""
        several = sum(other.implementation == record.implementation for other in self.records) > 1
        return f"{record.implementation} [{record.config}]" if several else record.implementation


def _as_fast(first: Record, other: Record) -> bool:
    """Whether the other cannot be told to be slower: 1 lies in the interval of their ratio, or their intervals
    overlap where turns are not known.
    """
    one, two = timing_of(first), timing_of(other)
    assert one is not None and two is not None
    ratio = paired_times.paired(two, one)
    return ratio.low <= 1 if ratio is not None else two.interval_s[0] <= one.interval_s[1]


def groups(records: Iterable[Record]) -> tuple[Group, ...]:
    """The groups in the order in which they first appear, those of one operator together: several processes may have
    recorded in
    turns. Records of verification alone (no workload) form groups of their own."""
    by_group: dict[tuple[str, str, str, str, str, str], list[Record]] = {}
    for record in records:
        # what has no time stands with the times of callers
        by_group.setdefault(
            (record.operator, record.workload, record.dtype, record.device, record.run, terms_of(record) or CALL), []
        ).append(record)
    first = {operator: place for place, operator in reversed(list(enumerate(key[0] for key in by_group)))}
    return tuple(
        Group(
            operator=operator,
            workload=workload,
            dtype=dtype,
            device=device,
            run=run,
            records=tuple(sorted(members, key=_order)),
            terms=terms,
        )
        for (operator, workload, dtype, device, run, terms), members in sorted(
            by_group.items(), key=lambda entry: first[entry[0][0]]
        )
    )


def _order(record: Record) -> tuple[int, float, str]:
    timing = timing_of(record)
    if timing is not None:
        return (0 if sound(record) else 1, timing.median_s, record.implementation)
    return (
        2 if isinstance(record.verdict, REFUSED) else 3 if isinstance(record.verdict, Pass) else 4,
        0.0,
        record.implementation,
    )


def unique(values: Iterable[str]) -> tuple[str, ...]:
    """The values without repetition, in order of first appearance."""
    return tuple(dict.fromkeys(values))


def standing(records: Sequence[Record]) -> str:
    """Where one implementation stands over its records: "failed" if any failed, else "refused", "passed", "not
    accurate" (a baseline), or "not run".
    """
    if any(isinstance(record.verdict, FAILURES) for record in records):
        return "failed"
    if any(isinstance(record.verdict, LibraryFallback) for record in records):
        return "refused"
    if any(isinstance(record.verdict, Inaccurate) for record in records):
        return "not accurate"
    return "passed" if any(isinstance(record.verdict, Pass) for record in records) else "not run"


def by_implementation(records: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    """Records by (operator, implementation), in order of first appearance."""
    by_name: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        by_name.setdefault((record.operator, record.implementation), []).append(record)
    return by_name


def geometric_mean(values: Sequence[float]) -> float | None:
    """The geometric mean, the right one for ratios; None of nothing."""
    return math.exp(sum(math.log(value) for value in values) / len(values)) if values else None


BACKENDS = ("torch", "compile", "triton", "cuda", "tilelang", "cpp", "library")
SLOTS = 8


ALTERNATIVES = {"torch": "torch eager", "compile": "torch.compile", "library": "libraries"}
"""The columns of what a user would take if there were nothing else, and their titles."""

COLUMN_OF_DEFINITION = "definition"


def column(record: Record) -> str:
    """The column that a record stands in: its backend, or COLUMN_OF_DEFINITION for the composition that nobody
    calls.
    """
    return COLUMN_OF_DEFINITION if record.implementation == DEFINITION else record.backend


def alternative(record: Record) -> bool:
    """Whether a user would take this if there were nothing else."""
    return column(record) in ALTERNATIVES


def columns_of(records: Iterable[Record]) -> list[str]:
    """The columns in which these records stand, those of opforge's own backends first."""
    present = unique(column(record) for record in records)
    known = [*BACKENDS[:2], COLUMN_OF_DEFINITION, *BACKENDS[2:]]
    return [name for name in known if name in present] + sorted(set(present) - set(known))


def slots(records: Iterable[Record]) -> dict[str, int]:
    """A colour and a marker for each backend: always the same for those of opforge, the next free ones for plugins."""
    names = unique(record.backend for record in records)
    strangers = sorted(set(names) - set(BACKENDS))
    known = {name: BACKENDS.index(name) for name in BACKENDS if name in names}
    return {**known, **{name: len(BACKENDS) + place % (SLOTS - len(BACKENDS)) for place, name in enumerate(strangers)}}
