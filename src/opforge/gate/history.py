"""Histories: one series per operator × implementation × workload × dtype × machine, and where it stepped."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from opforge import store
from opforge.core.evidence.record import Record
from opforge.core.evidence.verdict import Pass
from opforge.core.language import units
from opforge.gate.change_points import Segment, segments
from opforge.store import point_of

SMALLEST = 0.02
"""The least change of the level, as a fraction, that counts as a step."""

NARROWEST = 0.002
"""Relative width of an interval below which a point gains no more weight."""


@dataclass(frozen=True, kw_only=True)
class SeriesKey:
    """What a series, or a case of a gate, is about."""

    operator: str
    implementation: str
    workload: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.operator}:{self.implementation} {self.workload} {self.dtype}"


@dataclass(frozen=True, kw_only=True)
class SeriesPoint:
    """One timing in a history: seconds, relative width of the median's interval, and where it came from."""

    record: str
    created_at: str
    run: str
    commit: str
    median_s: float
    width: float


@dataclass(frozen=True, kw_only=True)
class Change:
    """A step: the first point of the new level, the levels in seconds, and the commits between which it happened."""

    at: int
    before_s: float
    after_s: float
    last_good: str
    first_changed: str

    @property
    def ratio(self) -> float:
        """New level over old level: above 1 is slower."""
        return self.after_s / self.before_s


@dataclass(frozen=True, kw_only=True)
class Series:
    """The timings of one SeriesKey on one machine (by fingerprint), oldest first, with levels and steps."""

    key: SeriesKey
    device: str
    fingerprint: str
    points: tuple[SeriesPoint, ...]
    segments: tuple[Segment, ...]

    @property
    def changes(self) -> tuple[Change, ...]:
        """The steps, oldest first."""
        return tuple(
            Change(
                at=after.start,
                before_s=math.exp(before.level),
                after_s=math.exp(after.level),
                last_good=self.points[after.start - 1].commit,
                first_changed=self.points[after.start].commit,
            )
            for before, after in itertools.pairwise(self.segments)
        )

    @property
    def words(self) -> str:
        """One line: where the series stands, and its latest step."""
        now = units.seconds(math.exp(self.segments[-1].level))
        told = f"{units.plural(len(self.points), 'timing')}, now {now}"
        if not self.changes:
            return f"{told}, no step"
        last = self.changes[-1]
        way = "slower" if last.ratio > 1 else "faster"
        between = (
            f" between {last.last_good[:10]} and {last.first_changed[:10]}"
            if last.last_good and last.first_changed
            else ""
        )
        return (
            f"{told}, {units.percent(abs(last.ratio - 1))} {way} since {self.points[last.at].created_at[:16]}{between}"
        )


def history(records: Iterable[Record], *, smallest: float = SMALLEST) -> tuple[Series, ...]:
    """The series in these records, steps found."""
    return series_of((point_of(record) for record in records), smallest=smallest)


SEARCHES = "tune-"
"""How the runs of `opforge tune` are named: the points of a space share a name and are not one thing measured again."""


def series_of(points: Iterable[store.HistoryEntry], *, smallest: float = SMALLEST) -> tuple[Series, ...]:
    """The series in what a store says of its records, steps found. Only timings with a Pass that nothing speaks against
    count.
    """
    by_series: dict[tuple[SeriesKey, str, str], list[SeriesPoint]] = {}
    for seen in sorted(points, key=lambda seen: seen.created_at):
        if (
            seen.median_s is None
            or seen.low_s is None
            or seen.high_s is None
            or seen.verdict != Pass.__name__
            or seen.suspect
            or not seen.median_s > 0
        ):
            continue
        if seen.run.startswith(SEARCHES):
            continue
        point = SeriesPoint(
            record=seen.id,
            created_at=seen.created_at,
            run=seen.run,
            commit=seen.revision,
            median_s=seen.median_s,
            width=(seen.high_s - seen.low_s) / seen.median_s,
        )
        key = SeriesKey(
            operator=seen.operator, implementation=seen.implementation, workload=seen.workload, dtype=seen.dtype
        )
        by_series.setdefault((key, seen.device, seen.fingerprint), []).append(point)
    return tuple(
        Series(
            key=key,
            device=device,
            fingerprint=fingerprint,
            points=tuple(points),
            segments=levels(points, smallest=smallest),
        )
        for (key, device, fingerprint), points in by_series.items()
    )


def levels(points: Iterable[SeriesPoint], *, smallest: float = SMALLEST) -> tuple[Segment, ...]:
    """The levels of a history as logarithms of seconds; a point counts by how narrow its interval was."""
    taken = list(points)
    return segments(
        [math.log(point.median_s) for point in taken],
        [1 / max(NARROWEST, point.width) for point in taken],
        smallest=math.log1p(smallest),
    )
