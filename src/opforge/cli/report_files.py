"""Writes the four faces of a report, and finds what a report needs of a store."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from opforge.core.definition.device import DeviceSpec
from opforge.core.evidence.record import Record

if TYPE_CHECKING:
    from opforge.core.evidence.optimization import OptimizationRound
    from opforge.registry import Registry
    from opforge.report import Past
    from opforge.report.versions import Move
    from opforge.store import Store

PAST = 100
"""Earlier timings that a report shows of each kernel."""


def write_reports(
    records: Sequence[Record],
    folder: Path,
    device: DeviceSpec | None,
    title: str = "opforge bench",
    pasts: Mapping[str, Past] | None = None,
    rounds: Sequence[OptimizationRound] = (),
    moves: Sequence[Move] = (),
) -> list[Path]:
    """report.html, report.md, report.json and report.csv in `folder`; their paths. `pasts` are the histories of timed
    records, by id; `rounds` of optimisations and other `moves` are arrows on the roofline.
    """
    from opforge.report import csv_text, html, json_text, markdown

    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "report.html": html(records, title=title, device=device, pasts=pasts, rounds=rounds, moves=moves),
        "report.md": markdown(records),
        "report.json": json_text(records),
        "report.csv": csv_text(records),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def ways_of(
    store: Store, registry: Registry, records: Sequence[Record]
) -> tuple[list[OptimizationRound], tuple[Move, ...]]:
    """The rounds of these operators on these devices, and the moves from defaults to tuned points on record."""
    from opforge.report.versions import moves_of_tuning

    operators = {record.operator for record in records}
    rounds = [
        one
        for name in sorted(operators)
        for one in store.rounds(operator=name)
        if one.device in {record.device for record in records}
    ]
    defaults = {}
    points = {(record.operator, record.implementation, record.workload, record.dtype) for record in records}
    known = []
    for name in sorted(operators & set(registry.names())):
        for item in registry.implementations(name):
            if item.space:
                defaults[name, item.name] = item.default
        known += [
            record
            for record in store.query(operator=name)
            if (record.operator, record.implementation, record.workload, record.dtype) in points
            and (record.operator, record.implementation) in defaults
        ]
    return rounds, moves_of_tuning(known, defaults)


def pasts_of(store: Store, records: Sequence[Record]) -> dict[str, Past]:
    """The history of each timed record up to itself, on its own machine, by the record's id."""
    from opforge.gate import series_of
    from opforge.report import Past
    from opforge.store import point_of

    pasts: dict[str, Past] = {}
    for record in records:
        if record.timing is None or not record.workload:
            continue
        mine = point_of(record)
        known = store.series(
            record.operator,
            record.implementation,
            record.workload,
            record.dtype,
            record.device,
            mine.fingerprint,
            limit=PAST,
            timed=True,
        )
        for series in series_of(
            [*(point for point in known if point.id != mine.id and point.created_at <= mine.created_at), mine]
        ):
            pasts[record.id] = Past(
                medians_s=tuple(point.median_s for point in series.points),
                levels=tuple((segment.start, segment.end, math.exp(segment.level)) for segment in series.segments),
                words=series.words,
            )
    return pasts
