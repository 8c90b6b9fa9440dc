"""The table of ratios: one backend against the best that a user would take if there were nothing else, run by run."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from statistics import fmean

from opforge.core import units
from opforge.core.record import Record
from opforge.report.markdown_tables import ALTERNATIVES, axes_words, date_of, escaped, legend, mark, newest, pipe_table
from opforge.report.view import Group, geometric_mean, of_roof, sound, timing_of, unique

COPY_FACT = "host.copy_bytes_per_s"
"""The fact of a record's environment that holds what a copy of as many bytes reached on the same machine, in bytes/s."""

LEAST, MEAN = 0.9, 1.1
"""What is wanted of a backend on a CPU: no ratio below LEAST, and a geometric mean of MEAN at least."""

OWN = "own"
"""In place of a backend: the fastest implementation of all but the alternatives. What is wanted of it, on any device, is a ratio of 1 everywhere."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """One comparison in one run: `mine` against the alternatives. `sides` and `times_s` hold the fastest record, and its median, of the backend and of each alternative
    that was timed, by backend; `of_copy` is the achieved share of a copy's rate, None where that was not measured."""

    group: Group
    mine: Record
    sides: dict[str, Record]
    times_s: dict[str, float]
    value: float
    of_copy: float | None


def ratios(records: Sequence[Record], backend: str = "cpp") -> list[Ratio]:
    """A Ratio for each operator, workload, dtype and device where the backend and an alternative were timed in one run; the newest run counts."""
    found = []
    for group in newest(records):
        fastest: dict[str, Record] = {}
        for record in group.timed:
            if sound(record):
                # fastest first: the first of a backend is its best
                fastest.setdefault(OWN if backend == OWN and record.backend not in ALTERNATIVES else record.backend, record)
        times = {name: timing.median_s for name, record in fastest.items() if (timing := timing_of(record)) is not None and name in (backend, *ALTERNATIVES)}
        if backend not in times or len(times) < 2:
            continue
        mine = fastest[backend]
        copy = mine.environment.facts.get(COPY_FACT, "")
        rate = mine.cost.bytes / times[backend]
        found.append(
            Ratio(
                group=group,
                mine=mine,
                sides={name: fastest[name] for name in times},
                times_s=times,
                value=min(seconds for name, seconds in times.items() if name != backend) / times[backend],
                of_copy=rate / float(copy) if copy else None,
            )
        )
    return found


def ratio_table(records: Sequence[Record], backend: str = "cpp", changed: Container[str] = ()) -> str:
    """Markdown: per dtype the geometric mean and the least ratio, then a row per operator, workload and dtype. A ratio is the median
    time of the fastest alternative (torch eager, torch.compile, other libraries) over that of the backend's fastest implementation, both of one run.

    Bold: below LEAST, or below 1 for OWN. The share of a copy is bytes moved / median time, over what a copy of as many bytes reached; for OWN it is that of the roof.
    """
    found = ratios(records, backend)
    if not found:
        chosen_by = "" if backend == OWN else f" --backend {backend} --backend torch --backend compile"
        return f"No runs with {backend} and an alternative. Make some with: opforge bench --all{chosen_by}\n"
    wanted, wanted_mean = (1.0, 1.0) if backend == OWN else (LEAST, MEAN)
    # a median within half a percent of another is no slower
    bar = wanted - 0.005 if backend == OWN else wanted
    dates = sorted(date_of(ratio.group)[:10] for ratio in found)
    devices = ", ".join(unique(ratio.group.device for ratio in found))
    marks = legend([record for ratio in found for record in ratio.sides.values()], changed)
    parts = [f"{escaped(devices)}, {escaped(dates[0] if dates[0] == dates[-1] else f'{dates[0]} to {dates[-1]}')}; the sides of a row took turns{marks}."]
    share = "of roof" if backend == OWN else "of copy"
    summary = []
    for dtype in (*unique(ratio.group.dtype for ratio in found), ""):
        chosen = [ratio for ratio in found if dtype in ("", ratio.group.dtype)]
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
    parts.append(pipe_table(["dtype", "rows", "geometric mean", "least ratio", f"below {wanted:g}", share + " (geometric mean)"], summary, "lrrlrr"))
    others = [name for name in ALTERNATIVES if name != "library" or any(name in ratio.times_s for ratio in found)]
    rows = [
        [
            escaped(ratio.group.operator),
            escaped(f"{ratio.group.workload} ({axes_words(ratio.group.timed[0])})"),
            escaped(ratio.group.dtype),
            *([escaped(ratio.mine.implementation)] if backend == OWN else []),
            *(units.seconds(ratio.times_s[name]) + mark(ratio.sides[name], changed) if name in ratio.times_s else "" for name in (backend, *others)),
            _marked(ratio.value, bar),
            units.percent(part) if (part := _share(ratio, backend)) is not None else "",
        ]
        for ratio in sorted(found, key=lambda ratio: ratio.group.operator)
    ]
    mine = ["fastest of ours", "its time"] if backend == OWN else [backend]
    titles = [ALTERNATIVES[name] for name in others]
    parts.append(pipe_table(["operator", "workload", "dtype", *mine, *titles, "ratio to the best", share], rows, "lll" + ("l" if backend == OWN else "") + "r" * (3 + len(titles))))
    return "\n\n".join(parts) + "\n"


def _share(ratio: Ratio, backend: str) -> float | None:
    return of_roof(ratio.mine) if backend == OWN else ratio.of_copy


def _marked(ratio: float, bar: float) -> str:
    return units.ratio(ratio) if ratio >= bar else f"**{units.ratio(ratio)}**"
