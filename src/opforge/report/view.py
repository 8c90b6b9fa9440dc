"""What may be shown of records, and how they belong together: the rules that every page and table shares.

A time is shown only beside a Pass; a speed-up only where both sides were timed in one run, on one workload and dtype.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from opforge.core.record import Record, to_json
from opforge.core.timing import Timing
from opforge.core.verdict import FAILURES, REFUSED, Pass, Policy

BASELINE = "torch_eager"
"""The implementation that speed-ups are against."""

_MEMORY_WORDS = ("memory", "copy", "read", "write", "stream", "bandwidth", "cache", "byte")


def timing_of(record: Record) -> Timing | None:
    """The record's timing if it may be shown: there is a Pass, and every sample is a positive, finite number of seconds."""
    timing = record.timing
    if timing is None or not isinstance(record.verdict, Pass) or not timing.samples_s:
        return None
    return timing if all(math.isfinite(sample) and sample > 0 for sample in timing.samples_s) else None


def sound(record: Record) -> bool:
    """Whether the record has a time that may be compared: one that may be shown and that nothing speaks against."""
    timing = timing_of(record)
    return timing is not None and timing.suspect is None


def roof_of(record: Record) -> float | None:
    """The least time in seconds that the device's ceilings allow, where it is known and a positive number."""
    return record.roof_s if record.roof_s is not None and math.isfinite(record.roof_s) and record.roof_s > 0 else None


def of_roof(record: Record) -> float | None:
    """roof_s / median: 1.0 is all that the device can do."""
    timing, roof = timing_of(record), roof_of(record)
    return roof / timing.median_s if timing is not None and roof is not None else None


def memory_bound(record: Record) -> bool:
    """Whether the ceiling that limits this record is one of memory. Without a limiter, by arithmetic intensity: below 10 FLOP/byte."""
    if record.limiter is None:
        return record.cost.intensity < 10
    return any(word in record.limiter.lower() for word in _MEMORY_WORDS)


def verdict_key(record: Record) -> str:
    """Equal for records that carry the same verdict on the same implementation and dtype; NaNs inside do not matter."""
    return json.dumps([record.operator, record.implementation, record.dtype, record.device, to_json(record.verdict)], sort_keys=True)


@dataclass(frozen=True, kw_only=True)
class Group:
    """The records that may be compared: one run, operator, workload, dtype and device. Timed ones first, fastest first; those
    whose time is suspect stand after the others, lead nothing and have no speed-up."""

    operator: str
    workload: str
    dtype: str
    device: str
    run: str
    records: tuple[Record, ...]

    @cached_property
    def timed(self) -> tuple[Record, ...]:
        """The records with a time that may be shown."""
        return tuple(record for record in self.records if timing_of(record) is not None)

    @cached_property
    def baseline_s(self) -> float | None:
        """The median of BASELINE in this group, in seconds; of its fastest config where there are several."""
        medians = [timing.median_s for record in self.timed if record.implementation == BASELINE and sound(record) and (timing := timing_of(record)) is not None]
        return min(medians, default=None)

    def speedup(self, record: Record) -> float | None:
        """Baseline median / this median; None where either side was not timed here."""
        timing, baseline = timing_of(record), self.baseline_s
        return baseline / timing.median_s if timing is not None and baseline is not None and sound(record) else None

    @cached_property
    def leaders(self) -> tuple[Record, ...]:
        """The fastest, and every one whose 95 % interval overlaps with its interval: they cannot be told apart by these samples."""
        timed = [record for record in self.timed if sound(record)]
        if not timed:
            return ()
        first = timing_of(timed[0])
        assert first is not None
        return tuple(record for record in timed if (timing := timing_of(record)) is not None and timing.interval_s[0] <= first.interval_s[1])

    def label(self, record: Record) -> str:
        """The implementation's name; with its config where the group holds several of that name."""
        several = sum(other.implementation == record.implementation for other in self.records) > 1
        return f"{record.implementation} [{record.config}]" if several else record.implementation


def groups(records: Iterable[Record]) -> tuple[Group, ...]:
    """The groups in the order in which they first appear, those of one operator together: several processes may have recorded in
    turns. Records of verification alone (no workload) form groups of their own."""
    found: dict[tuple[str, str, str, str, str], list[Record]] = {}
    for record in records:
        found.setdefault((record.operator, record.workload, record.dtype, record.device, record.run), []).append(record)
    first = {operator: place for place, operator in reversed(list(enumerate(key[0] for key in found)))}
    return tuple(
        Group(operator=operator, workload=workload, dtype=dtype, device=device, run=run, records=tuple(sorted(members, key=_order)))
        for (operator, workload, dtype, device, run), members in sorted(found.items(), key=lambda entry: first[entry[0][0]])
    )


def _order(record: Record) -> tuple[int, float, str]:
    timing = timing_of(record)
    if timing is not None:
        return (0 if sound(record) else 1, timing.median_s, record.implementation)
    return (2 if isinstance(record.verdict, REFUSED) else 3 if isinstance(record.verdict, Pass) else 4, 0.0, record.implementation)


def unique(values: Iterable[str]) -> tuple[str, ...]:
    """The values without repetition, in order of first appearance."""
    return tuple(dict.fromkeys(values))


def standing(records: Sequence[Record]) -> str:
    """Where one implementation stands over its records: "failed" if any failed, else "refused", "passed", or "not run"."""
    if any(isinstance(record.verdict, FAILURES) for record in records):
        return "failed"
    if any(isinstance(record.verdict, Policy) for record in records):
        return "refused"
    return "passed" if any(isinstance(record.verdict, Pass) for record in records) else "not run"


def by_implementation(records: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    """Records by (operator, implementation), in order of first appearance."""
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        found.setdefault((record.operator, record.implementation), []).append(record)
    return found


def geometric_mean(values: Sequence[float]) -> float | None:
    """The geometric mean, the right one for ratios; None of nothing."""
    return math.exp(sum(math.log(value) for value in values) / len(values)) if values else None


BACKENDS = ("torch", "compile", "triton", "cuda", "tilelang", "cpp", "library")
SLOTS = 8


def slots(records: Iterable[Record]) -> dict[str, int]:
    """A colour and a marker for each backend: always the same for those of opforge, the next free ones for plugins."""
    names = unique(record.backend for record in records)
    strangers = sorted(set(names) - set(BACKENDS))
    known = {name: BACKENDS.index(name) for name in BACKENDS if name in names}
    return {**known, **{name: len(BACKENDS) + place % (SLOTS - len(BACKENDS)) for place, name in enumerate(strangers)}}
