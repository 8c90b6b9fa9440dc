"""A history as a picture: each timing a dot, each level a line, each step marked."""

from __future__ import annotations

import math

from opforge.core.language import units
from opforge.gate.history import Series
from opforge.report import svg
from opforge.report.record_text import short

WIDTH, HEIGHT = 720.0, 240.0
LEFT, RIGHT, TOP, BOTTOM = 70.0, 20.0, 44.0, 36.0
LONGEST_TITLE = 100
STYLE = (
    "text{font:12px "
    "sans-serif;fill:#222}.axis{stroke:#999}.dot{stroke:#4269d0;stroke-width:5;stroke-linecap:round;fill:none}"
    ".level{stroke:#222;stroke-width:2}.step{stroke:#e4572e;stroke-dasharray:4 "
    "3}.end{text-anchor:end}.middle{text-anchor:middle}"
)


def picture_of(series: Series) -> str:
    """The SVG of one series; time upwards from 0, points in the order recorded."""
    medians = [point.median_s for point in series.points]
    top = 1.1 * max(medians)
    across = svg.linear(0, max(1, len(medians) - 1), LEFT, WIDTH - RIGHT)
    up = svg.linear(0, top, HEIGHT - BOTTOM, TOP)
    parts = [svg.element("style", STYLE), svg.text(short(f"{series.key} on {series.device}", LONGEST_TITLE), LEFT, 18)]
    for tick in svg.ticks(top, 4):
        parts += [
            svg.line(LEFT, up(tick), WIDTH - RIGHT, up(tick), "axis"),
            svg.text(units.seconds(tick) if tick else "0", LEFT - 6, up(tick) + 4, "end"),
        ]
    parts.append(svg.dots([(across(position), up(median)) for position, median in enumerate(medians)], "dot"))
    for segment in series.segments:
        level = up(math.exp(segment.level))
        parts.append(
            svg.line(across(segment.start), level, across(max(segment.start, segment.end - 1)), level, "level")
        )
    for change in series.changes:
        where = across(change.at - 0.5)
        parts += [
            svg.line(where, TOP, where, HEIGHT - BOTTOM, "step"),
            svg.text(f"x{change.ratio:.2f}", where, TOP - 4, "middle"),
        ]
    first, last = series.points[0], series.points[-1]
    parts += [
        svg.text(first.created_at[:10], LEFT, HEIGHT - 12),
        svg.text(last.created_at[:10], WIDTH - RIGHT, HEIGHT - 12, "end"),
    ]
    return svg.picture(WIDTH, HEIGHT, f"{series.key}: {series.words}", *parts) + "\n"
