"""What the READMEs open with, made from records: a picture of three memory-bound operators and a table of a few
workloads.

Both compare calls as a caller gets them, timed in one run. A row with a side that was not steady, or whose source has
changed since, is left out.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from opforge.core.language import units
from opforge.report import svg
from opforge.report.markdown_tables import date_of, pipe_table
from opforge.report.ratios import OWN, Ratio, ratios
from opforge.report.view import ALTERNATIVES, of_roof, roof_of

if TYPE_CHECKING:
    from opforge.core.evidence.record import Record

PANELS = {"softmax": "softmax", "rmsnorm": "RMS norm", "layernorm": "layer norm"}
"""The operators of the picture, with their titles."""

ROWS_OF = re.compile(r"rows_(\d+)k")
"""The workloads of the picture: rows of that many thousand columns, as many as make 64 Mi elements."""

SERIES = {"torch": ("torch eager", "eager"), "compile": ("torch.compile", "compile"), OWN: ("opforge", "own")}
COLUMNS = {"torch": "torch eager", "compile": "torch.compile", "library": "library"}
"""The alternatives, by their columns' titles."""
WIDTH, HEIGHT = 1000.0, 372.0
PANEL_WIDTH, GAP, LEFT, TOP, BOTTOM = 286.0, 30.0, 52.0, 92.0, 316.0
MOST_BYTES_PER_S = 4.5e12
STYLE = """<style>
text { font: 13px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: #1f2937 }
.paper { fill: #ffffff } .title { font-size: 19px; font-weight: 600 } .head { font-size: 15px;
    font-weight: 600 } .small { font-size: 12px; fill: #6b7280 }
.grid { stroke: #e5e7eb } .bound { stroke: #111827; stroke-dasharray: 5 4 } .gain { font-weight: 600; fill: #047857 }
polyline { fill: none; stroke-width: 2.5 }
polyline.eager { stroke: #9ca3af } polyline.compile { stroke: #d97706 } polyline.own { stroke: #047857;
    stroke-width: 3.5 }
circle.eager, rect.eager { fill: #9ca3af } circle.compile, rect.compile { fill: #d97706 } circle.own,
    rect.own { fill: #047857 }
</style>"""


def fresh(records: Sequence[Record], changed: Container[str]) -> list[Ratio]:
    """The ratios of the fastest of ours, without those that have a record in `changed`."""
    return [ratio for ratio in ratios(records, OWN) if not any(record.id in changed for record in ratio.sides.values())]


def lead_table(records: Sequence[Record], workloads: Sequence[str], changed: Container[str]) -> str:
    """Markdown: a row for each of `workloads` (OPERATOR/WORKLOAD) that has a steady ratio of sources that are there
    now, in their order.
    """
    by_name: dict[str, Ratio] = {
        f"{ratio.group.operator}/{ratio.group.workload}": ratio for ratio in fresh(records, changed)
    }
    chosen = [by_name[name] for name in workloads if name in by_name]
    # the speed-up is over the fastest of all of them: each that was timed has its column
    sides = [side for side in ALTERNATIVES if any(side in ratio.times_s for ratio in chosen)]
    rows = [
        [
            ratio.group.operator,
            ratio.group.workload,
            *(_time(ratio, side) for side in sides),
            f"**{units.seconds(ratio.times_s[OWN])}**",
            f"**{units.ratio(ratio.value)}**",
            units.percent(share) if (share := of_roof(ratio.mine)) is not None else "",
            ratio.mine.implementation,
        ]
        for ratio in chosen
    ]
    titles = [
        "operator",
        "workload",
        *(COLUMNS[side] for side in sides),
        "opforge",
        "speed-up",
        "of the roofline bound",
        "kernel",
    ]
    dates = sorted({date_of(ratio.group)[:10] for ratio in chosen})
    if not chosen:
        return "No steady row of these sources. Renew the records with: make gpu"
    words = (
        f"{_devices(chosen)}, {', '.join(sorted({ratio.group.dtype for ratio in chosen}))}, "
        f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))}"
    )
    alignment = f"ll{'r' * len(sides)}rrrl"
    told = units.listed([COLUMNS[side].replace("library", "a library") for side in sides])
    return f"{words}. Speed-up: against the fastest of {told}.\n\n{pipe_table(titles, rows, alignment)}"


def _time(ratio: Ratio, side: str) -> str:
    """An alternative's time; which library it is, since there are several. "–" where it was not timed."""
    if side not in ratio.times_s:
        return "–"
    library = ratio.sides[side].implementation.partition("_")[2]
    return units.seconds(ratio.times_s[side]) + (f" ({library})" if side == "library" else "")


def rows_picture(records: Sequence[Record], changed: Container[str]) -> str:
    """SVG: achieved bandwidth over the width of a row, a panel an operator; "" where no operator has two widths."""
    by_operator = {
        name: _by_columns([ratio for ratio in fresh(records, changed) if ratio.group.operator == name])
        for name in PANELS
    }
    panels = {name: points for name, points in by_operator.items() if len(points) > 1}
    if not panels:
        return ""
    every = [ratio for points in panels.values() for ratio in points.values()]
    parts = [STYLE, svg.element("rect", x=0.0, y=0.0, width=WIDTH, height=HEIGHT, rx=8.0, class_="paper")]
    parts.append(svg.text(f"Achieved bandwidth, {_devices(every)}, bfloat16, 64 Mi elements", LEFT, 32, "title"))
    parts += _legend()
    for place, (name, points) in enumerate(panels.items()):
        parts += _panel(PANELS[name], points, LEFT + place * (PANEL_WIDTH + GAP), first=place == 0)
    parts.append(
        svg.text(
            "Columns of a row. Green: against the fastest of torch eager, torch.compile and libraries. Calls as a "
            "caller gets them, CUDA graph replay, cold cache, interleaved.",
            LEFT,
            HEIGHT - 14,
            "small",
        )
    )
    gains = [(name, columns, ratio.value) for name, points in panels.items() for columns, ratio in points.items()]
    label = "opforge against the fastest of torch eager, torch.compile and libraries: "
    label += "; ".join(f"{PANELS[name]}, {columns}k columns {units.ratio(gain)}" for name, columns, gain in gains)
    return svg.picture(WIDTH, HEIGHT, label, *parts) + "\n"


def _devices(chosen: Sequence[Ratio]) -> str:
    """As a reader knows them: nvidia-h200 is NVIDIA H200."""
    return " and ".join(sorted({ratio.group.device.replace("-", " ").upper() for ratio in chosen}))


def _by_columns(found: Sequence[Ratio]) -> dict[int, Ratio]:
    widths = {
        int(match[1]): ratio
        for ratio in found
        if (match := ROWS_OF.fullmatch(ratio.group.workload)) and ratio.group.dtype == "bfloat16"
    }
    return dict(sorted(widths.items()))


def _legend() -> list[str]:
    parts, x = [], LEFT
    for name, style in reversed(SERIES.values()):
        parts += [svg.element("rect", x=x, y=50.0, width=22.0, height=5.0, class_=style), svg.text(name, x + 28, 57)]
        x += 130
    return [
        *parts,
        svg.line(x, 52.5, x + 22, 52.5, "bound"),
        svg.text("roofline bound (measured copy bandwidth)", x + 28, 57),
    ]


def _panel(title: str, points: dict[int, Ratio], left: float, *, first: bool) -> list[str]:
    """One operator: grid, bound, a line per series, the gain at the widest row."""
    across = svg.logarithmic(min(points), max(points), left + 8, left + PANEL_WIDTH - 8)
    up = svg.linear(0.0, MOST_BYTES_PER_S, BOTTOM, TOP)
    parts = [svg.text(title, left, TOP - 8, "head")]
    for tick in range(5):
        parts.append(svg.line(left, up(tick * 1e12), left + PANEL_WIDTH, up(tick * 1e12), "grid"))
        if first:
            parts.append(
                svg.text(
                    f"{tick} TB/s" if tick == 4 else str(tick),
                    left - 6,
                    up(tick * 1e12) + 4,
                    "small",
                    text_anchor="end",
                )
            )
    parts += [
        svg.text(f"{columns}k", across(columns), BOTTOM + 18, "small", text_anchor="middle") for columns in points
    ]
    bounds = [
        (across(columns), up(ratio.mine.cost.bytes / bound))
        for columns, ratio in points.items()
        if (bound := roof_of(ratio.mine))
    ]
    parts += [svg.line(*a, *b, "bound") for a, b in pairwise(bounds)]
    for side, (_, style) in SERIES.items():
        line = [
            (across(columns), up(ratio.mine.cost.bytes / ratio.times_s[side]))
            for columns, ratio in points.items()
            if side in ratio.times_s
        ]
        parts.append(svg.element("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in line), class_=style))
        parts += [svg.element("circle", cx=x, cy=y, r=4.0 if side == OWN else 3.0, class_=style) for x, y in line]
    widest = points[max(points)]
    y = up(widest.mine.cost.bytes / widest.times_s[OWN])
    return [*parts, svg.text(units.ratio(widest.value), across(max(points)) + 6, y + 22, "gain", text_anchor="end")]
