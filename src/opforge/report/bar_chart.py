"""The picture of a group: a bar per implementation, its interval, its numbers, every sample, and the roofline bound."""

from __future__ import annotations

import math
from collections.abc import Mapping

from opforge.core.evidence.record import Record
from opforge.core.language import units
from opforge.report import svg
from opforge.report.record_text import clean, notes, short
from opforge.report.timing_evidence import anchor
from opforge.report.view import BASELINE, Group, memory_bound, of_roof, roof_of, timing_of

WIDTH = 1080.0
ROW = 34.0
TOP = 30.0
BOTTOM = 24.0
NAME_X, BAR_X0, BAR_X1 = 6.0, 214.0, 570.0
COLUMNS = (658.0, 756.0, 816.0, 884.0)
STRIP_X0, STRIP_X1 = 912.0, 1070.0
LONGEST_NAME = 27

REACH = 6.0
"""A bar longer than this many times the shortest is cut, with a visible tear, so that the short ones can be seen."""

MOST_STRIP = 4.0
"""Samples beyond this multiple of their median stand at the edge of the strip, as arrowheads."""


def bars(group: Group, colours: Mapping[str, int]) -> str:
    """The picture as SVG; "" when nothing in the group was timed."""
    timed = group.timed
    if not timed:
        return ""
    medians = [timing.median_s for record in timed if (timing := timing_of(record)) is not None]
    highs = [timing.interval_s[1] for record in timed if (timing := timing_of(record)) is not None]
    roofs = [roof for record in timed if (roof := roof_of(record)) is not None]
    limit = min(max(highs), REACH * min(medians))
    end = 1.04 * max([limit, *(roof for roof in roofs if roof <= limit)])
    scale = svg.linear(0.0, end, BAR_X0, BAR_X1)
    low, high = _strip_range(group)
    strip = svg.logarithmic(low, high, STRIP_X0, STRIP_X1)
    height = TOP + ROW * len(timed) + BOTTOM
    floor = TOP + ROW * len(timed)
    parts = [_heads(), _grid(scale, end, floor), _strip_axis(strip, low, high, floor)]
    for place, record in enumerate(timed):
        parts.append(_row(group, record, TOP + ROW * place, scale, end, strip, (low, high), colours[record.backend]))
    parts.append(_roof(timed[0], scale, end, floor))
    label = (
        f"Median time of {len(timed)} implementations of {group.operator}, {group.workload}, {group.dtype}; the "
        "numbers are in the picture"
    )
    return svg.picture(WIDTH, height, clean(label), *parts)


def _heads() -> str:
    heads = ("median", "rate", "% of peak", "vs eager")
    columns = [svg.text(word, x, 16, "head", text_anchor="end") for word, x in zip(heads, COLUMNS, strict=True)]
    return "".join([*columns, svg.text("every sample / median", STRIP_X0, 16, "head")])


def _grid(scale: svg.Scale, end: float, floor: float) -> str:
    parts = []
    for tick in svg.ticks(end):
        parts.append(svg.line(scale(tick), TOP, scale(tick), floor, "axis" if tick == 0 else "grid"))
        parts.append(
            svg.text(
                "0" if tick == 0 else units.trimmed(units.seconds(tick)),
                scale(tick),
                floor + 16,
                "tick",
                text_anchor="middle",
            )
        )
    return "".join(parts)


def _roof(record: Record, scale: svg.Scale, end: float, floor: float) -> str:
    """The roofline bound as a dashed line over all rows: the cost is the operator's, so it is the same for every
    implementation.
    """
    roof = roof_of(record)
    if roof is None or roof > end:
        return ""
    label = f"roofline bound {units.seconds(roof)}" + (f" · {clean(record.limiter)}" if record.limiter else "")
    x = scale(roof)
    anchor = "end" if x > BAR_X1 - 60 else "start"
    return svg.line(x, TOP - 6, x, floor, "roof") + svg.text(short(label, 44), x, 16, "roof-label", text_anchor=anchor)


def _row(
    group: Group,
    record: Record,
    y: float,
    scale: svg.Scale,
    end: float,
    strip: svg.Scale,
    reach: tuple[float, float],
    colour: int,
) -> str:
    timing = timing_of(record)
    assert timing is not None
    middle = y + ROW / 2
    lead = record in group.leaders
    name = group.label(record)
    median = timing.median_s
    torn = median > end
    tip = svg.title(_tip(group, record))
    shown = min(median, end)
    parts = [
        tip,
        svg.element("rect", x=0.0, y=y, width=WIDTH, height=ROW, class_="row-hit"),
        svg.marker(colour, NAME_X + 6, middle, 5, f"b{colour}"),
        svg.text(short(clean(name), LONGEST_NAME), NAME_X + 20, middle + 4.5, "name lead" if lead else "name"),
        svg.element(
            "rect",
            x=BAR_X0,
            y=y + 7,
            width=max(1.0, scale(shown) - BAR_X0),
            height=ROW - 14,
            rx=2.0,
            class_=f"b{colour}{'' if lead else ' rest'}",
        ),
    ]
    if torn:
        x = BAR_X1 - 22
        tear = f"M{x:.0f} {y + 3:.0f}l6 {ROW / 2 - 3:.0f}l-6 {ROW / 2 - 3:.0f}"
        parts.append(svg.element("path", d=tear, class_="tear"))
    else:
        low_s, high_s = timing.interval_s
        parts.append(_whisker(scale(min(low_s, end)), scale(min(high_s, end)), middle))
    parts += [
        svg.text(text, x, middle + 4.5, class_, text_anchor="end") for text, x, class_ in _numbers(group, record, lead)
    ]
    low, high = reach
    inside = [sample / median for sample in timing.samples_s if low <= sample / median <= high]
    beyond = sum(sample / median > high for sample in timing.samples_s)
    # a fixed pattern of heights, not a random one: the page must come out the same each time
    points = [(strip(value), middle + 7 * math.sin(2.4 * place)) for place, value in enumerate(inside)]
    parts += [svg.line(strip(1.0), y + 6, strip(1.0), y + ROW - 6, "median"), svg.dots(points, f"dots d{colour}")]
    if beyond:
        parts.append(svg.text(f"+{beyond} ▸", STRIP_X1 + 8, y + 10, "beyond", text_anchor="end"))
    return svg.link(f"#{anchor(record)}", svg.element("g", *parts, class_="bar-row"))


def _numbers(group: Group, record: Record, lead: bool) -> list[tuple[str, float, str]]:
    timing = timing_of(record)
    assert timing is not None
    fraction, speedup = of_roof(record), group.speedup(record)
    cells = [
        ((" " if not notes(record) else "! ") + units.seconds(timing.median_s), "num strong" if lead else "num"),
        (rate(record), "num"),
        ("–" if fraction is None else units.percent(fraction), "num"),
        (
            "baseline"
            if record.implementation == BASELINE
            else "unsure"
            if group.unsure(record)
            else "–"
            if speedup is None
            else units.ratio(speedup),
            "num strong" if lead else "num",
        ),
    ]
    return [(text, x, class_) for (text, class_), x in zip(cells, COLUMNS, strict=True)]


def rate(record: Record) -> str:
    """What was achieved, in the unit of what limits it: bytes/s or FLOP/s. "–" without a time."""
    timing = timing_of(record)
    if timing is None:
        return "–"
    amount = record.cost.bytes if memory_bound(record) else record.cost.flops
    if amount <= 0:
        return "–"
    return (units.bytes_per_s if memory_bound(record) else units.flops_per_s)(amount / timing.median_s)


def _tip(group: Group, record: Record) -> str:
    timing = timing_of(record)
    assert timing is not None
    low, high = timing.interval_s
    _, p90, p99 = timing.p50_p90_p99_s
    lines = [
        f"{group.label(record)} ({record.backend})",
        f"median {units.seconds(timing.median_s)}, 95 % interval {units.seconds(low)} to {units.seconds(high)}",
        f"p90 {units.seconds(p90)}, p99 {units.seconds(p99)}, interquartile range {units.percent(timing.spread)} "
        f"of the median, {units.plural(len(timing.outliers), 'outlier')}",
        f"{units.plural(len(timing.samples_s), 'sample')} of {units.plural(timing.batch, 'call')}, timer "
        f"{timing.timer}, cache {timing.cache}",
        f"loop overhead {units.seconds(timing.overhead_s)} per call"
        + (f", launch cost {units.seconds(timing.launch_s)}" if timing.launch_s is not None else ""),
        f"config: {record.config}",
        f"record {record.id}; click for what stands behind it",
    ]
    return "\n".join(clean(line) for line in lines)


def _whisker(low: float, high: float, middle: float) -> str:
    d = (
        f"M{svg.coordinate(low)} {svg.coordinate(middle - 5)}v10M{svg.coordinate(low)} "
        f"{svg.coordinate(middle)}H{svg.coordinate(high)}m0 -5v10"
    )
    return svg.element("path", d=d, class_="whisker")


def _strip_range(group: Group) -> tuple[float, float]:
    ratios = [
        sample / timing.median_s
        for record in group.timed
        if (timing := timing_of(record)) is not None
        for sample in timing.samples_s
    ]
    return max(1 / MOST_STRIP, min(0.97, min(ratios) * 0.99)), min(MOST_STRIP, max(1.05, max(ratios) * 1.01))


def _strip_axis(strip: svg.Scale, low: float, high: float, floor: float) -> str:
    # the two ends and the median: enough to read a spread by
    labels = [(low, "start"), (high, "end")] + (
        [(1.0, "middle")] if strip(1.0) - STRIP_X0 > 48 and STRIP_X1 - strip(1.0) > 48 else []
    )
    words = [svg.text(f"{value:.2f}", strip(value), floor + 16, "tick", text_anchor=anchor) for value, anchor in labels]
    return "".join([svg.line(STRIP_X0, floor, STRIP_X1, floor, "grid"), *words])
