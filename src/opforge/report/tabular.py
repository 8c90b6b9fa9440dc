"""Records as rows: for a terminal (words and a style for each row), as CSV and as JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opforge.core.evidence.record import FOLDER, Record, to_json
from opforge.core.evidence.verdict import REFUSED, Pass, Unsupported
from opforge.core.language import units
from opforge.report.bar_chart import rate
from opforge.report.disturbance import disturbance, notes_beside
from opforge.report.error_words import error_words
from opforge.report.record_text import CELL, clean, describe, notes, short, untimed, verdict_word
from opforge.report.sections import failures, not_run
from opforge.report.view import BASELINE, Group, groups, of_roof, roof_of, timing_of
from opforge.report.walls import weaker_walls

_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a spreadsheet may take for a formula at the start of a cell, the full-width forms included (OWASP, CSV
injection).
"""


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """One line of a terminal's table. Every text is on one line and free of control characters, but not of markup:
    escape it.

    style     "good" (timed), "plain" (verified, no time), "bad" (a failure), "idle" (not run)
    saved     the bytes that a fused operator does not move, and a sequence of simpler ones would
    best      fastest of its operator, workload and dtype, or not to be told apart from the fastest
    detail    one sentence: the verdict in words
    notes     what the row must confess, each with what to do
    """

    operator: str
    workload: str
    dtype: str
    implementation: str
    backend: str
    verdict: str
    error: str
    time: str
    rate: str
    roof: str
    speedup: str
    saved: str
    style: str
    best: bool
    detail: str
    notes: tuple[str, ...]


def table(records: Sequence[Record]) -> list[TableRow]:
    """One TableRow per record: comparable ones stand together, the fastest first, those without a time after them."""
    told = disturbance(records)
    return [_row(group, record, told) for group in groups(records) for record in group.records]


def _row(group: Group, record: Record, told: str) -> TableRow:
    timing, verdict = timing_of(record), record.verdict
    fraction = of_roof(record)
    return TableRow(
        operator=short(clean(record.operator), CELL),
        workload=short(clean(record.workload), CELL),
        dtype=short(clean(record.dtype), CELL),
        implementation=short(clean(group.label(record)), CELL),
        backend=short(clean(record.backend), CELL),
        verdict=verdict_word(record),
        error=error_words(verdict, record.dtype) if isinstance(verdict, Pass) else "",
        time=units.seconds(timing.median_s) if timing is not None else "",
        rate=rate(record) if timing is not None else "",
        roof=units.percent(fraction) if fraction is not None else "",
        speedup=speedup_words(group, record),
        saved=units.size(record.cost.bytes_saved) if timing is not None and record.cost.bytes_saved else "",
        style="good"
        if timing is not None
        else "bad"
        if isinstance(verdict, REFUSED)
        else "idle"
        if isinstance(verdict, Unsupported)
        else "plain",
        best=record in group.leaders,
        detail=untimed(record) if isinstance(verdict, Pass) and timing is None else describe(verdict),
        notes=tuple(clean(note) for note in notes_beside(record, told)),
    )


UNSURE = "unsure"
"""In place of a ratio that is not certain (core.evidence.paired_times), as a comparison says it."""


def speedup_words(group: Group, record: Record) -> str:
    """ "1.83x", "baseline", "unsure" where the ratio is not certain, or "" where there is nothing to compare."""
    ratio = group.speedup(record)
    if record.implementation != BASELINE and group.unsure(record):
        return UNSURE
    if ratio is None:
        return "baseline" if record.implementation == BASELINE and group.unsure(record) else ""
    return "baseline" if record.implementation == BASELINE else units.ratio(ratio)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a Grid: as many styles as cells; a style is a word that terminals' libraries know ("bold green",
    "dim", "").
    """

    cells: tuple[str, ...]
    styles: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table for a terminal. `numeric` names the columns that stand to the right."""

    columns: tuple[str, ...]
    numeric: frozenset[str]
    rows: tuple[Line, ...]


_SAVED = "bytes saved"
_NUMERIC = ("error/bound", "median", "rate", "% of peak", "vs eager")
_TONES = {"good": "green", "plain": "cyan", "bad": "bold red", "idle": "dim"}


_STATISTICS = ("min", "mean", "std", "RSD", "samples")
_ENERGY = "GOPS/W"


def operations_per_joule(record: Record) -> float | None:
    """Operations of a call over its energy, which is their rate over its power; None where one is not known."""
    timing = timing_of(record)
    known = timing is not None and timing.energy_j is not None and timing.energy_j > 0 and record.cost.flops > 0
    return record.cost.flops / timing.energy_j if timing is not None and timing.energy_j and known else None


def _statistics(record: Record, energy: bool) -> tuple[str, ...]:
    """Of the samples as they were taken, no outlier left out."""
    timing = timing_of(record)
    if timing is None:
        return ("",) * (len(_STATISTICS) + energy)
    per_joule = operations_per_joule(record)
    return (
        units.seconds(min(timing.samples_s)),
        units.seconds(timing.mean_s),
        units.seconds(timing.std_s),
        units.percent(timing.rsd),
        str(len(timing.samples_s)),
        *((f"{per_joule / 1e9:.3g}" if per_joule is not None else "–",) if energy else ()),
    )


def rows(records: Sequence[Record], statistics: bool = False) -> Grid:
    """`table` as cells and styles. What a line shares with the one above it is dim, so that groups can be seen. With
    `statistics`, those of the samples stand beside the median, and operations for each joule where energy was measured.
    """
    # only where there is something to say: other operators save no pass
    fused = any(record.cost.bytes_saved for record in records)
    energy = statistics and any(record.timing is not None and record.timing.energy_j for record in records)
    lines = []
    above: tuple[str, str, str] = ("", "", "")
    ordered = [record for group in groups(records) for record in group.records]
    for record, row in zip(ordered, table(records), strict=True):
        beside = _statistics(record, energy) if statistics else ()
        place = (row.operator, row.workload, row.dtype)
        heads = [
            "dim" if place[: count + 1] == above[: count + 1] else "bold" if count == 0 else "" for count in range(3)
        ]
        above = place
        strong = "bold" if row.best else "dim" if row.style == "idle" else ""
        time = "yellow" if row.notes else strong
        cells = (
            *place,
            row.implementation,
            row.verdict,
            row.error,
            row.time,
            *beside,
            row.rate,
            row.roof,
            row.speedup,
            *([row.saved] if fused else []),
        )
        lines.append(
            Line(
                cells=cells,
                styles=(
                    *heads,
                    strong,
                    _TONES[row.style],
                    "",
                    time,
                    *([""] * len(beside)),
                    "",
                    "",
                    strong,
                    *([""] if fused else []),
                ),
            )
        )
    told = (*_STATISTICS, *([_ENERGY] if energy else [])) if statistics else ()
    numeric = (*_NUMERIC[:2], *told, *_NUMERIC[2:], *([_SAVED] if fused else []))
    return Grid(
        columns=("operator", "workload", "dtype", "implementation", "verdict", *numeric),
        numeric=frozenset(numeric),
        rows=tuple(lines),
    )


OWN = "opforge"
"""In place of a folder, of an operator that comes with opforge."""


def kept_rows(records: Sequence[Record]) -> Grid:
    """What is in a store, a line for each record in the order given: its id and time, and the folder of its operator;
    the other verbs take the id.
    """
    lines = []
    for record in records:
        timing = timing_of(record)
        cells = (
            clean(record.id)[:12],
            clean(record.created_at)[:16].replace("T", " "),
            record.operator,
            record.implementation,
            record.workload,
            record.dtype,
            verdict_word(record),
            units.seconds(timing.median_s) if timing is not None else "",
            record.environment.facts.get(FOLDER, OWN),
            record.device,
        )
        lines.append(Line(cells=tuple(short(clean(cell), CELL) for cell in cells), styles=("",) * len(cells)))
    return Grid(
        columns=(
            *("id", "recorded (UTC)", "operator", "implementation", "workload", "dtype", "verdict"),
            *("median", "folder", "device"),
        ),
        numeric=frozenset({"median"}),
        rows=tuple(lines),
    )


def confessions(records: Sequence[Record]) -> list[str]:
    """What belongs under a table: the failures in words, the weaknesses of times, and the reasons why something was not
    run.
    """
    lines = [
        f"{entry['operator']}/{entry['implementation']} {entry['dtype']}: {entry['sentence']}"
        for entry in failures(records)
    ]
    lines += weaker_walls(records)
    if told := disturbance(records):
        lines.append(told)
    for row in table(records):
        lines += [f"{row.operator}/{row.workload}/{row.implementation} {row.dtype}: {note}" for note in row.notes]
    for entry in not_run(records):
        lines.append(
            f"not run: {entry['reason'].rstrip('.')}: "
            f"{', '.join(f'{name} ({dtypes})' for name, dtypes in entry['what'])}"
        )
    return lines


def json_text(records: Sequence[Record]) -> str:
    """All of the records, nothing left out: a JSON list that `core.evidence.record.from_json` reads back."""
    return json.dumps([to_json(record) for record in records], indent=1, ensure_ascii=False, allow_nan=False)


def csv_text(records: Sequence[Record]) -> str:
    """One line per record (RFC 4180). SI units; empty where there is no such number. Text that a spreadsheet would run
    gets an apostrophe.
    """
    out = io.StringIO()
    lines: list[Mapping[str, str | int | float | None]] = []
    for group in groups(records):
        lines += [_flat(group, record) for record in group.records]
    writer = csv.DictWriter(out, fieldnames=list(lines[0]) if lines else list(_COLUMNS))
    writer.writeheader()
    for line in lines:
        writer.writerow({name: _cell(value) for name, value in line.items()})
    return out.getvalue()


_COLUMNS = ("operator", "workload", "dtype", "implementation", "backend", "verdict", "median_s")
"""The first columns: all there is to write of no records at all."""


def _cell(value: str | int | float | None) -> str | int | float:
    if value is None:
        return ""
    if isinstance(value, str):
        plain = clean(value)
        return f"'{plain}" if plain.startswith(_FORMULA) else plain
    return value


def _flat(group: Group, record: Record) -> dict[str, str | int | float | None]:
    timing, verdict = timing_of(record), record.verdict
    passed = verdict if isinstance(verdict, Pass) else None
    low, high = timing.interval_s if timing is not None else (None, None)
    return {
        "operator": record.operator,
        "workload": record.workload,
        "dtype": record.dtype,
        "implementation": record.implementation,
        "backend": record.backend,
        "verdict": type(verdict).__name__,
        "median_s": timing.median_s if timing is not None else None,
        "interval_low_s": low,
        "interval_high_s": high,
        "p10_s": timing.quantile_s(0.1) if timing is not None else None,
        "p99_s": timing.quantile_s(0.99) if timing is not None else None,
        "p90_s": timing.quantile_s(0.9) if timing is not None else None,
        "spread": timing.spread if timing is not None else None,
        "min_s": min(timing.samples_s) if timing is not None else None,
        "mean_s": timing.mean_s if timing is not None else None,
        "std_s": timing.std_s if timing is not None else None,
        "rsd": timing.rsd if timing is not None else None,
        "energy_j": timing.energy_j if timing is not None else None,
        "flops_per_j": operations_per_joule(record),
        "samples": len(timing.samples_s) if timing is not None else None,
        "batch": timing.batch if timing is not None else None,
        "timer": timing.timer if timing is not None else None,
        "cache": timing.cache if timing is not None else None,
        "overhead_s": timing.overhead_s if timing is not None else None,
        "launch_s": timing.launch_s if timing is not None else None,
        "times_torch_eager": group.speedup(record),
        "roof_s": roof_of(record),
        "of_roof": of_roof(record),
        "limiter": record.limiter,
        "flops": record.cost.flops,
        "bytes_read": record.cost.bytes_read,
        "bytes_written": record.cost.bytes_written,
        "bytes_saved": record.cost.bytes_saved,
        "flops_per_s": record.cost.flops / timing.median_s if timing is not None else None,
        "bytes_per_s": record.cost.bytes / timing.median_s if timing is not None else None,
        "worst_error_over_bound": passed.worst_ratio if passed else None,
        "max_abs_error": passed.max_abs if passed else None,
        "cases_checked": len(passed.checked) if passed else None,
        "cases_not_taken": len(passed.not_taken) if passed else None,
        "isolation": str(getattr(verdict, "isolation", "")),
        "words": describe(verdict),
        "notes": "; ".join(notes(record)),
        "axes": json.dumps(to_json(record.axes)),
        "scalars": json.dumps(to_json(record.scalars)),
        "config": str(record.config),
        "compile_s": record.compile_s,
        "device": record.device,
        "host": record.environment.host,
        "environment": record.environment.fingerprint,
        "source_sha256": record.source_sha256,
        "created_at": record.created_at,
        "run": record.run,
        "id": record.id,
    }
