"""The table of ratios: one backend against the best that a user would take if there were nothing else, run by run."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from statistics import fmean

from opforge.core.definition.implementation import EAGER
from opforge.core.evidence.record import Record
from opforge.core.evidence.timing_terms import CALL, OUT, WORDS
from opforge.core.language import units
from opforge.report.markdown_tables import axes_words, date_of, escaped, legend, mark, newest, pipe_table
from opforge.report.view import (
    ALTERNATIVES,
    COLUMN_OF_DEFINITION,
    Group,
    alternative,
    certain,
    column,
    geometric_mean,
    of_roof,
    ratio_of,
    sound,
    timing_of,
    unique,
)

COPY_FACT = "host.copy_bytes_per_s"
"""The fact of a record's environment that holds what a copy of as many bytes reached on the same machine, in
bytes/s.
"""

LEAST, MEAN = 0.9, 1.1
"""What is wanted of a backend on a CPU: no ratio below LEAST, and a geometric mean of MEAN at least."""

OWN = "own"
"""In place of a backend: the fastest implementation of all but the alternatives. What is wanted of it, on any device,
is a ratio of 1 everywhere.
"""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """One comparison in one run, as a caller gets it: `mine` against the alternatives.

    sides, times_s   the fastest record, and its median, of the backend and of each alternative that was timed, by
                     column
    of_copy          the achieved share of a copy's rate, None where that was not measured
    out              the ratio of calls with `out=`, torch eager's over that of `mine`; None where one was not timed so
    """

    group: Group
    mine: Record
    sides: dict[str, Record]
    times_s: dict[str, float]
    value: float
    of_copy: float | None
    out: float | None = None


def ratios(records: Sequence[Record], backend: str = "cpp") -> list[Ratio]:
    """A Ratio for each operator, workload, dtype and device where the backend and an alternative were timed in one run,
    and their ratio is certain; the newest run counts.
    """
    table = []
    latest = newest(records)
    into = {
        (group.operator, group.workload, group.dtype, group.device, group.run): group
        for group in latest
        if group.terms == OUT
    }
    for group in latest:
        if group.terms != CALL:
            continue
        fastest: dict[str, Record] = {}
        for record in group.timed:
            if sound(record):
                # fastest first: the first of a backend is its best
                ours = not alternative(record) and column(record) != COLUMN_OF_DEFINITION
                fastest.setdefault(OWN if backend == OWN and ours else column(record), record)
        times = {
            name: timing.median_s
            for name, record in fastest.items()
            if (timing := timing_of(record)) is not None and name in (backend, *ALTERNATIVES)
        }
        if backend not in times or len(times) < 2:
            continue
        mine = fastest[backend]
        best = min((name for name in times if name != backend), key=times.__getitem__)
        value = ratio_of(fastest[best], mine)
        if value is None or not certain(fastest[best], mine):
            continue
        copy = mine.environment.facts.get(COPY_FACT, "")
        rate = mine.cost.bytes / times[backend]
        table.append(
            Ratio(
                group=group,
                mine=mine,
                sides={name: fastest[name] for name in times},
                times_s=times,
                value=value,
                of_copy=rate / float(copy) if copy else None,
                out=_out(into.get((group.operator, group.workload, group.dtype, group.device, group.run)), mine),
            )
        )
    return table


def _out(group: Group | None, mine: Record) -> float | None:
    """Median of torch's `out=` call / that of `mine` with `out=` given, where both were timed."""
    sides = (
        {
            record.implementation: record.timing.median_s
            for record in group.timed
            if sound(record) and record.timing is not None
        }
        if group is not None
        else {}
    )
    return sides[EAGER] / sides[mine.implementation] if EAGER in sides and mine.implementation in sides else None


def ratio_table(records: Sequence[Record], backend: str = "cpp", changed: Container[str] = ()) -> str:
    """Markdown: per dtype the geometric mean and the least ratio, then a row per operator, workload and dtype. A ratio
    is the time of the fastest alternative (torch eager, torch.compile, other libraries) over that of the backend's
    fastest implementation, both of one run, turn by turn where turns were kept.

    Both times as a caller gets it. Ratios that are not certain (core.evidence.paired_times) are left out.
    Bold: below LEAST, or below 1 for OWN. The share of a copy is bytes moved / median time, over what a copy of as many
    bytes reached; for OWN it is the share of the roofline bound.
    """
    table = ratios(records, backend)
    if not table:
        chosen_by = "" if backend == OWN else f" --backend {backend} --backend torch --backend compile"
        return f"No runs with {backend} and an alternative. Make some with: opforge bench --all{chosen_by}\n"
    wanted, wanted_mean = (1.0, 1.0) if backend == OWN else (LEAST, MEAN)
    # a median within half a percent of another is no slower
    bar = wanted - 0.005 if backend == OWN else wanted
    dates = sorted(date_of(ratio.group)[:10] for ratio in table)
    devices = ", ".join(unique(ratio.group.device for ratio in table))
    marks = legend([record for ratio in table for record in ratio.sides.values()], changed)
    span = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    parts = [f"{escaped(devices)}, {escaped(span)}; times of a row were taken interleaved, both {WORDS[CALL]}{marks}."]
    share = "% of peak" if backend == OWN else "of copy"
    summary = []
    for dtype in (*unique(ratio.group.dtype for ratio in table), ""):
        chosen = [ratio for ratio in table if dtype in ("", ratio.group.dtype)]
        mean, least = geometric_mean([ratio.value for ratio in chosen]), min(chosen, key=lambda ratio: ratio.value)
        assert mean is not None  # every dtype comes from a ratio
        copies = [part for ratio in chosen if (part := _share(ratio, backend)) is not None]
        summary.append(
            [
                escaped(dtype) or "all",
                str(len(chosen)),
                units.ratio(mean) if mean >= wanted_mean else f"**{units.ratio(mean)}**",
                f"{_marked(least.value, bar)} ({escaped(least.group.operator)} {escaped(least.group.workload)})",
                str(sum(ratio.value < bar for ratio in chosen)),
                units.percent(math.exp(fmean(math.log(share) for share in copies))) if copies else "",
            ]
        )
    parts.append(
        pipe_table(
            ["dtype", "rows", "geometric mean", "least ratio", f"below {wanted:g}", share + " (geometric mean)"],
            summary,
            "lrrlrr",
        )
    )
    has_out = any(ratio.out is not None for ratio in table)
    others = [name for name in ALTERNATIVES if name != "library" or any(name in ratio.times_s for ratio in table)]
    rows = [
        [
            escaped(ratio.group.operator),
            escaped(f"{ratio.group.workload} ({axes_words(ratio.group.timed[0])})"),
            escaped(ratio.group.dtype),
            *([escaped(ratio.mine.implementation)] if backend == OWN else []),
            *(
                units.seconds(ratio.times_s[name]) + mark(ratio.sides[name], changed) if name in ratio.times_s else ""
                for name in (backend, *others)
            ),
            _marked(ratio.value, bar),
            *([units.ratio(ratio.out) if ratio.out is not None else "–"] if has_out else []),
            units.percent(part) if (part := _share(ratio, backend)) is not None else "",
        ]
        for ratio in sorted(table, key=lambda ratio: ratio.group.operator)
    ]
    mine = ["fastest of ours", "its time"] if backend == OWN else [backend]
    titles = [ALTERNATIVES[name] for name in others]
    parts.append(
        pipe_table(
            [
                "operator",
                "workload",
                "dtype",
                *mine,
                *titles,
                "ratio to the best",
                *(["with out="] if has_out else []),
                share,
            ],
            rows,
            "lll" + ("l" if backend == OWN else "") + "r" * (3 + has_out + len(titles)),
        )
    )
    return "\n\n".join(parts) + "\n"


def _share(ratio: Ratio, backend: str) -> float | None:
    return of_roof(ratio.mine) if backend == OWN else ratio.of_copy


def _marked(ratio: float, bar: float) -> str:
    return units.ratio(ratio) if ratio >= bar else f"**{units.ratio(ratio)}**"
