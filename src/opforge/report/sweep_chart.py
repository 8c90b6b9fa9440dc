"""A sweep as a picture: time against size above, % of peak below, one line per implementation; and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

from opforge.core.language import units
from opforge.report import svg
from opforge.report.record_text import clean, short

WIDTH, UPPER, LOWER = 760.0, 300.0, 160.0
LEFT, RIGHT, TOP, GAP, BOTTOM = 80.0, 200.0, 34.0, 40.0, 44.0
COLOURS = ("#4269d0", "#e4572e", "#3a923a", "#9c6ade", "#c98a00", "#17a2b8", "#d6336c", "#6c757d")
DASHES = ("none", "7 3", "2 3")
"""Of the lines that the colours are used up for once, twice: a colour and a dash stand for one line alone."""
LONGEST_NAME = 25
STYLE = "text{font:12px sans-serif;fill:#222}.grid{stroke:#ddd}.end{text-anchor:end}.middle{text-anchor:middle}"

Polyline = Sequence[tuple[float, float]]


def sweep_picture(title: str, axis: str, times: Mapping[str, Polyline], shares: Mapping[str, Polyline]) -> str:
    """The SVG of a sweep.

    times    by implementation: (size, seconds) points, both positive
    shares   by implementation: (size, share of the roofline bound) points
    """
    sizes = sorted({size for line in times.values() for size, _ in line})
    seconds = [value for line in times.values() for _, value in line]
    across = svg.logarithmic(sizes[0], max(sizes[-1], sizes[0] * 1.0001), LEFT, WIDTH - RIGHT)
    up = svg.logarithmic(min(seconds) / 1.2, max(seconds) * 1.2, TOP + UPPER, TOP)
    parts = [svg.element("style", STYLE), svg.text(title, LEFT, 18)]
    for tick in svg.decades(min(seconds) / 1.2, max(seconds) * 1.2):
        parts += [
            svg.line(LEFT, up(tick), WIDTH - RIGHT, up(tick), "grid"),
            svg.text(units.seconds(tick), LEFT - 8, up(tick) + 4, "end"),
        ]
    floor = TOP + UPPER + GAP + LOWER
    top_share = max([1.0, *(value for line in shares.values() for _, value in line)])
    share_up = svg.linear(0, top_share, floor, floor - LOWER)
    for tick in svg.ticks(top_share, 4):
        parts += [
            svg.line(LEFT, share_up(tick), WIDTH - RIGHT, share_up(tick), "grid"),
            svg.text(f"{tick:.0%}", LEFT - 8, share_up(tick) + 4, "end"),
        ]
    for size in sizes[:: max(1, len(sizes) // 8)]:
        parts.append(svg.text(f"{size:g}", across(size), floor + 18, "middle"))
    parts.append(svg.text(f"{axis}; time above, % of peak below", LEFT, floor + 36))
    for place, (name, line) in enumerate(times.items()):
        colour, dash = COLOURS[place % len(COLOURS)], DASHES[place // len(COLOURS) % len(DASHES)]
        parts += _line(line, across, up, colour, dash) + _line(shares.get(name, ()), across, share_up, colour, dash)
        height = TOP + 14 + 18 * place
        key = f"M{svg.coordinate(WIDTH - RIGHT + 6)} {svg.coordinate(height - 4)}h20"
        parts += [_stroke(key, colour, dash), svg.text(short(clean(name), LONGEST_NAME), WIDTH - RIGHT + 30, height)]
    floor = max(floor, TOP + 18.0 * len(times) - BOTTOM)
    return svg.picture(WIDTH, floor + BOTTOM, title, *parts) + "\n"


def sweep_csv(lines: Sequence[Mapping[str, str | int | float | None]]) -> str:
    """A line per point (RFC 4180), the columns as the first has them; empty where there is no such number."""
    out = io.StringIO()
    writer = csv.writer(out)
    if lines:
        writer.writerow(lines[0])
    for line in lines:
        writer.writerow(
            ["" if value is None else clean(value) if isinstance(value, str) else value for value in line.values()]
        )
    return out.getvalue()


def _stroke(path: str, colour: str, dash: str) -> str:
    return svg.element("path", d=path, fill="none", stroke=colour, stroke_width=2.0, stroke_dasharray=dash)


def _line(line: Polyline, across: svg.Scale, up: svg.Scale, colour: str, dash: str) -> list[str]:
    points = [(across(size), up(value)) for size, value in sorted(line)]
    if not points:
        return []
    path = "M" + "L".join(f"{svg.coordinate(x)} {svg.coordinate(y)}" for x, y in points)
    marks = [svg.element("circle", cx=x, cy=y, r=3.0, fill=colour) for x, y in points]
    return [_stroke(path, colour, dash), *marks]
