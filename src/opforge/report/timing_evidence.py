"""What stands behind each time of a group: quantiles, memory, clocks, its past, the machine while it was measured, and
how to have it again.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opforge.core.evidence.record import Record
from opforge.core.evidence.timing import Moment, Timing
from opforge.core.language import units
from opforge.report import svg
from opforge.report.record_text import clean
from opforge.report.view import Group, timing_of

WIDTH, LANE, WORDS = 560.0, 17.0, 130.0
PAST_WIDTH, PAST_HEIGHT = 240.0, 40.0
SHORT_ID = 12
TIMERS = {"cupti": "CUPTI", "cuda_graph": "graph", "cuda_event": "events", "host": "host"}
LANES = (
    ("sm_mhz", "{} MHz"),
    ("power_w", "{} W"),
    ("temperature_c", "{} °C"),
    ("load", "load {}"),
    ("cpu_mhz", "{} MHz"),
)
"""What is drawn of the moments, and its words: of a device where it was read, else of the processor."""


@dataclass(frozen=True, kw_only=True)
class Past:
    """The earlier timings of a kernel on this machine, oldest first.

    medians_s   seconds, one per timing, this one among them
    levels      (first, one past the last, seconds) of each level that was fitted to them
    words       where it stands, in a line
    """

    medians_s: tuple[float, ...]
    levels: tuple[tuple[int, int, float], ...]
    words: str


def evidence(group: Group, pasts: Mapping[str, Past]) -> list[dict[str, Any]]:
    """A row for each timed record of a group."""
    return [
        _row(group, record, timing, pasts.get(record.id))
        for record in group.timed
        if (timing := timing_of(record)) is not None
    ]


def machines(group: Group) -> list[tuple[str, str]]:
    """(whose, picture) of the machine while the group was measured: one for all that were interleaved."""
    by_moments: dict[tuple[Moment, ...], list[str]] = {}
    for record in group.timed:
        timing = timing_of(record)
        if timing is not None and timing.moments:
            by_moments.setdefault(timing.moments, []).append(group.label(record))
    pictures = []
    for moments, names in by_moments.items():
        words = [
            "" if len(by_moments) == 1 else clean(units.listed(names)),
            "(red: clocks held back)" if any(moment.throttled for moment in moments) else "",
        ]
        pictures.append((" ".join(word for word in words if word), over_run(moments)))
    return [(words, picture) for words, picture in pictures if picture]


def anchor(record: Record) -> str:
    """The place of a record on the page."""
    return f"record-{clean(record.id)}"


def rerun(record: Record) -> str:
    """The command that measures a record again, for a shell."""
    return f"opforge records rerun {shlex.quote(clean(record.id)[:SHORT_ID])}"


def bench_words(record: Record) -> str:
    """The same measurement as a bench, without a store at hand."""
    command = [
        "opforge",
        "bench",
        record.operator,
        "--implementation",
        record.implementation,
        "--workload",
        record.workload,
        "--dtype",
        record.dtype,
    ]
    return shlex.join(clean(word) for word in command)


def _row(group: Group, record: Record, timing: Timing, past: Past | None) -> dict[str, Any]:
    low, high = timing.interval_s
    return {
        "anchor": anchor(record),
        "name": clean(group.label(record)),
        "quantiles": " · ".join(units.seconds(value) for value in timing.p50_p90_p99_s),
        "interval": f"{units.seconds(low)} to {units.seconds(high)}, {units.plural(len(timing.samples_s), 'sample')} "
        f"of {units.plural(timing.batch, 'call')}",
        "moved": units.size(record.cost.bytes),
        "workspace": workspace_words(timing),
        "clock": f"{TIMERS.get(timing.timer, clean(timing.timer))}, {clean(timing.cache)}",
        "seen": clean(
            ", ".join(f"{TIMERS.get(name, name)} {units.seconds(value)}" for name, value in timing.seen_by.items())
        ),
        "launch": f"launch {units.seconds(timing.launch_s)}" if timing.launch_s is not None else "",
        "past": past_picture(past) if past is not None and len(past.medians_s) > 1 else "",
        "past_words": clean(past.words) if past is not None else "",
        "id": clean(record.id)[:SHORT_ID],
        "rerun": rerun(record),
        "bench": bench_words(record),
    }


def workspace_words(timing: Timing) -> str:
    """What a call takes beyond inputs and outputs, at its peak."""
    if timing.extra_bytes is None:
        return "workspace not seen here"
    return f"+ {units.size(timing.extra_bytes)} workspace" if timing.extra_bytes else "no workspace"


def over_run(moments: tuple[Moment, ...]) -> str:
    """A lane for each quantity that was read while measuring, from first to last moment, its range in words; "" without
    any.
    Moments at which the driver held clocks back are marked in every lane."""
    lanes = [
        (name, form, values)
        for name, form in LANES
        if len(values := [(moment.at_s, value) for moment in moments if (value := getattr(moment, name)) is not None])
        > 1
    ]
    if any(name == "sm_mhz" for name, _, _ in lanes):
        lanes = [lane for lane in lanes if lane[0] not in ("load", "cpu_mhz")]
    if not lanes:
        return ""
    end = max(moment.at_s for moment in moments) or 1.0
    across = svg.linear(0.0, end, 3.0, WIDTH - WORDS)
    parts = []
    for place, (name, form, values) in enumerate(lanes):
        low, high = min(value for _, value in values), max(value for _, value in values)
        told = form.format(" to ".join(dict.fromkeys((f"{low:.4g}", f"{high:.4g}"))))
        # a range of less than a hundredth is drawn flat: a picture must not make a storm of nothing
        slack = max(high - low, 0.01 * abs(high), 1e-9)
        up = svg.linear((low + high - slack) / 2, (low + high + slack) / 2, LANE * (place + 1) - 4, LANE * place + 4)
        path = "M" + "L".join(f"{svg.coordinate(across(at))} {svg.coordinate(up(value))}" for at, value in values)
        held = [
            (across(moment.at_s), up(float(getattr(moment, name))))
            for moment in moments
            if moment.throttled and getattr(moment, name) is not None
        ]
        parts.append(
            svg.element(
                "g",
                svg.title(
                    f"{name.replace('_', ' ')}: {told} over {units.seconds(end)}, {units.plural(len(values), 'look')}"
                ),
                svg.element("path", d=path, class_="trace"),
                svg.dots(held, "held") if held else "",
                svg.text(told, WIDTH - WORDS + 8, LANE * (place + 1) - 5, "tick"),
            )
        )
    return svg.picture(
        WIDTH,
        LANE * len(lanes),
        f"The machine while measuring: {', '.join(name.replace('_', ' ') for name, _, _ in lanes)}",
        *parts,
    )


def past_picture(past: Past) -> str:
    """Each earlier timing a dot, each level a line, steps marked, this timing the last one; upwards is slower.

    From a fifth below the fastest to a tenth above the slowest: from 0, a step of 5 % would be a pixel.
    """
    bottom, top = 0.8 * min(past.medians_s), 1.1 * max(past.medians_s)
    across = svg.linear(0, len(past.medians_s) - 1, 6.0, PAST_WIDTH - 6)
    up = svg.linear(bottom, top, PAST_HEIGHT - 3, 3.0)
    points = [(across(place), up(value)) for place, value in enumerate(past.medians_s)]
    steps = [across(first - 0.5) for first, _, _ in past.levels[1:]]
    parts = [
        svg.title(past.words),
        svg.line(3, PAST_HEIGHT - 2, PAST_WIDTH - 3, PAST_HEIGHT - 2, "grid"),
        *(svg.line(x, 2, x, PAST_HEIGHT - 2, "stepped") for x in steps),
        svg.dots(points[:-1], "before"),
        *(
            svg.line(across(first), up(level), across(max(first, last - 1)), up(level), "trace")
            for first, last, level in past.levels
        ),
        svg.dots(points[-1:], "latest"),
    ]
    return svg.picture(PAST_WIDTH, PAST_HEIGHT, f"History: {past.words}", svg.element("g", *parts))
