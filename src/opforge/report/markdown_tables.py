"""Records as Markdown: the report of a run, and the table of a README."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from opforge.core.evidence.record import Record
from opforge.core.evidence.timing_terms import CALL, WORDS
from opforge.core.evidence.verdict import Inaccurate
from opforge.core.language import units
from opforge.report.bar_chart import rate
from opforge.report.record_text import axes, clean, notes, saved, verdict_word
from opforge.report.sections import emulated_kernels, failures, not_run
from opforge.report.summary import comparable, sentences
from opforge.report.tabular import speedup_words
from opforge.report.view import (
    COLUMN_OF_DEFINITION,
    Group,
    alternative,
    column,
    columns_of,
    memory_bound,
    of_roof,
    sound,
    timing_of,
    unique,
)

_SPECIAL = re.compile(r"[\\`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&commat;", "://": "&colon;//", "#": "&num;"}


CHANGED = " †"
CHANGED_MEANS = "the source, or shared code that it reaches, has changed since"
"""The mark of a record that speaks of an earlier source than the one that is there, and what it means."""

INACCURATE = " ≉"
INACCURATE_MEANS = "a baseline that is not accurate enough for a Pass; timed because users call it"
"""The mark of the time of a baseline that breaks the operator's bound, and what it means."""

SUSPECT = " ?"
SUSPECT_MEANS = "more than the device was measured to be able to do, so it is not compared"
"""The mark of a time that is not believed, and what it means."""


def escaped(text: str) -> str:
    """`text` as Markdown text that is neither markup, nor a link, nor a mention, nor the end of a table's cell.

    >>> escaped("a|b <script> torch_eager *x*")
    'a\\\\|b &lt;script&gt; torch_eager \\\\*x\\\\*'
    """
    plain = clean(text)
    for raw, entity in _ENTITIES.items():
        plain = plain.replace(raw, entity)
    return _SPECIAL.sub(lambda match: "\\" + match.group(), plain)


def markdown(records: Sequence[Record]) -> str:
    """The report as Markdown: the result in words, a table per comparison, failures, and what has no time and why."""
    groups = comparable(records)
    several = len(unique(group.run for group in groups)) > 1 or len(unique(group.device for group in groups)) > 1
    parts = ["\n".join(escaped(sentence) for sentence in sentences(records, groups))]
    for operator in unique(group.operator for group in groups):
        parts.append(f"## {escaped(operator)}")
        parts += [_comparison(group, several) for group in groups if group.operator == operator]
    broken = [
        f"- **{escaped(entry['operator'])} / {escaped(entry['implementation'])}**, {escaped(entry['dtype'])}: "
        f"{escaped(entry['sentence'])}"
        for entry in failures(records)
    ]
    for heading, items in (
        ("Failures", broken),
        ("Verified, without a time", _reasons(emulated_kernels(records))),
        ("Not run", _reasons(not_run(records))),
    ):
        if items:
            parts += [f"## {heading}", "\n".join(items)]
    return "\n\n".join(parts) + "\n"


def _reasons(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        f"- {escaped(entry['reason'])}: " + "; ".join(escaped(f"{name} ({dtypes})") for name, dtypes in entry["what"])
        for entry in entries
    ]


def _comparison(group: Group, several: bool) -> str:
    where = f" on {group.device}, run {group.run}" if several else ""
    first = group.timed[0]
    head = escaped(
        f"{group.workload}, {group.dtype}{where}: {axes(first)}; {units.size(first.cost.bytes)} "
        f"moved{saved(first)}, {units.flops(first.cost.flops)}"
    )
    rows = []
    remarks = []
    for record in group.records:
        timing, fraction, name = timing_of(record), of_roof(record), escaped(group.label(record))
        lead = "**" if record in group.leaders else ""
        time = f"{lead}{units.seconds(timing.median_s)}{lead}" if timing is not None else ""
        rows.append(
            [
                f"{lead}{name}{lead}",
                time,
                rate(record),
                units.percent(fraction) if fraction is not None else "",
                speedup_words(group, record),
                escaped(verdict_word(record)),
            ]
        )
        remarks += [f"- {name}: {escaped(note)}" for note in notes(record)]
    body = pipe_table(
        ["implementation", "median", "rate", "% of peak", "times torch eager", "verdict"], rows, "l" + "r" * 4 + "l"
    )
    return "\n\n".join([f"### {head}", body, *(["\n".join(remarks)] if remarks else [])])


def mark(record: Record, changed: Container[str]) -> str:
    """What is put behind a time: INACCURATE, SUSPECT, CHANGED, several of them or nothing."""
    return (
        (INACCURATE if isinstance(record.verdict, Inaccurate) else "")
        + ("" if sound(record) else SUSPECT)
        + (CHANGED if record.id in changed else "")
    )


def legend(shown: Iterable[Record], changed: Container[str]) -> str:
    """What the marks of the records shown mean, as the rest of a sentence."""
    marks = {mark(record, changed) for record in shown}
    meanings = ((INACCURATE, INACCURATE_MEANS), (SUSPECT, SUSPECT_MEANS), (CHANGED, CHANGED_MEANS))
    return "".join(f"; {sign.strip()}: {means}" for sign, means in meanings if any(sign in each for each in marks))


def benchmark_table(records: Sequence[Record], changed: Container[str] = ()) -> str:
    """The README's table: a row per operator, workload and dtype, a column per backend.

    A cell is the median time and the achieved rate of the backend's fastest verified implementation; the fastest of a
    row is bold, with all that its samples cannot tell it from. Of several runs, a row shows the last one on each
    device. Times that are not believed are marked, and those of records whose ids are in `changed`.
    """
    latest = sorted(newest(records), key=lambda group: (group.operator, group.dtype))
    if not latest:
        return "No timed records. Make some with: opforge bench --all\n"
    columns = columns_of(record for group in latest for record in group.timed)
    devices = unique(group.device for group in latest)
    parts = []
    for device in devices:
        rows = [_benchmark_row(group, columns, changed) for group in latest if group.device == device]
        shown = [record for group in latest if group.device == device for record in _fastest(group).values()]
        dates = sorted(date_of(group)[:10] for group in latest if group.device == device)
        span = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
        parts.append(
            f"{escaped(device)}, {escaped(span)}. Median time per call and achieved rate; bold: the fastest, and "
            f"what its samples cannot be told from{legend(shown, changed)}."
        )
        parts.append(
            pipe_table(
                ["operator", "workload", "dtype", *(escaped(name) for name in columns), "% of peak"],
                rows,
                "lll" + "r" * (len(columns) + 1),
            )
        )
    return "\n\n".join(parts) + "\n"


def implementation_table(records: Sequence[Record], changed: Container[str] = ()) -> str:
    """The table of an operator's own page: a row per implementation, workload and dtype, with % of peak and
    the ratio to the best alternative, which is the fastest of torch eager, torch.compile and other libraries in the
    same run. Marks as in `benchmark_table`.
    """
    latest = newest(records)
    if not latest:
        return "No timed records. Make some with: opforge bench --all\n"
    parts = []
    for device in unique(group.device for group in latest):
        groups = [group for group in latest if group.device == device]
        dates = sorted(date_of(group)[:10] for group in groups)
        marks = legend([record for group in groups for record in group.timed], changed)
        parts.append(
            f"{escaped(device)}, {escaped(dates[0] if dates[0] == dates[-1] else f'{dates[0]} to {dates[-1]}')}; the "
            f"times of a workload were taken interleaved{marks}."
        )
        parts.append(
            pipe_table(
                ["workload", "dtype", "implementation", "median", "rate", "% of peak", "times the best alternative"],
                [row for group in groups for row in _rows(group, changed)],
                "lllrrrr",
            )
        )
    return "\n\n".join(parts) + "\n"


def _rows(group: Group, changed: Container[str]) -> list[list[str]]:
    medians = {record.id: timing.median_s for record in group.timed if (timing := timing_of(record)) is not None}
    others = [medians[record.id] for record in group.timed if alternative(record) and sound(record)]
    rows = []
    for record in group.timed:
        fraction = of_roof(record)
        limit = "memory" if memory_bound(record) else "arithmetic"
        name = escaped(group.label(record))
        rows.append(
            [
                escaped(f"{group.workload} ({axes_words(record)})") + on_terms(group),
                escaped(group.dtype),
                f"**{name}**" if record in group.leaders else name,
                units.seconds(medians[record.id]) + mark(record, changed),
                rate(record),
                f"{units.percent(fraction)} of {limit}" if fraction is not None else "",
                ""
                if alternative(record) or column(record) == COLUMN_OF_DEFINITION or not others or not sound(record)
                else units.ratio(min(others) / medians[record.id]),
            ]
        )
    return rows


def on_terms(group: Group) -> str:
    """What stands behind a workload whose times are not those of a caller."""
    return "" if group.terms == CALL else f", {WORDS[group.terms]}"


def axes_words(record: Record) -> str:
    """The sizes of a workload, in the order in which the operator names its axes.

    >>> from types import SimpleNamespace
    >>> axes_words(SimpleNamespace(axes={"lead": (4, 8), "cols": 100}))
    'lead 4 × 8, cols 100'
    """
    return ", ".join(
        f"{name} {' × '.join(map(str, value)) if isinstance(value, tuple) else value}"
        for name, value in record.axes.items()
    )


def _fastest(group: Group) -> dict[str, Record]:
    """Of each column its fastest implementation; one whose time is believed, where there is one."""
    fastest: dict[str, Record] = {}
    for record in group.timed:
        fastest.setdefault(column(record), record)
    return fastest


def _benchmark_row(group: Group, columns: Sequence[str], changed: Container[str]) -> list[str]:
    leaders = group.leaders
    fastest = _fastest(group)
    cells = []
    for backend in columns:
        mine = fastest.get(backend)
        timing = timing_of(mine) if mine is not None else None
        if mine is None or timing is None:
            cells.append("")
            continue
        cell = f"{units.seconds(timing.median_s)} ({rate(mine)})"
        cells.append((f"**{cell}**" if mine in leaders else cell) + mark(mine, changed))
    fraction = of_roof(group.timed[0])
    limit = "memory" if memory_bound(group.timed[0]) else "arithmetic"
    roof = f"{units.percent(fraction)} of {limit}" if fraction is not None else ""
    return [escaped(group.operator), escaped(group.workload) + on_terms(group), escaped(group.dtype), *cells, roof]


def newest(records: Sequence[Record]) -> list[Group]:
    """The comparable groups; of several of one operator, workload, dtype and device the last one recorded, in the first
    one's place.
    """
    latest: dict[tuple[str, str, str, str, str], Group] = {}
    for group in comparable(records):
        key = (group.operator, group.workload, group.dtype, group.device, group.terms)
        if key not in latest or date_of(group) >= date_of(latest[key]):
            latest[key] = group
    return list(latest.values())


def date_of(group: Group) -> str:
    """When the newest of its records was made, as ISO 8601."""
    return max(clean(record.created_at) for record in group.records)


def pipe_table(heads: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """A table in Markdown. `align` has "l" or "r" for each column; cells are escaped by whoever makes them."""
    rule = ["---:" if side == "r" else ":---" for side in align]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rule, *rows))
