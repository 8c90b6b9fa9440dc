"""The picture of a verification: how far errors stay below their bound, in decades."""

from __future__ import annotations

import math
from collections.abc import Iterable

from opforge.core.evidence.verdict import Checked
from opforge.report import svg

WIDTH, HEIGHT = 108.0, 24.0
DECADES = 9
"""Bins of Metrics.histogram: below 1e-6, six decades up to 1, 1 to 10, above."""


def error_histogram(checked: Iterable[Checked]) -> str:
    """Counts of |error| / bound over all cases as a small SVG, heights logarithmic; "" when nothing was counted."""
    totals = [0] * DECADES
    for case in checked:
        for metrics in case.metrics:
            for place, count in enumerate(metrics.histogram[:DECADES]):
                totals[place] += max(0, count)
    if not any(totals):
        return ""
    step = WIDTH / DECADES
    tallest = math.log10(1 + max(totals))
    parts = []
    for place, count in enumerate(totals):
        tip = svg.title(f"{_name(place)}: {count} of {sum(totals)} elements")
        hit = svg.element("rect", x=step * place, y=0.0, width=step, height=HEIGHT, class_="row-hit")
        high = (HEIGHT - 4) * math.log10(1 + count) / tallest
        class_ = "over" if place >= 7 else "under"
        bar = (
            svg.element("rect", x=step * place + 1, y=HEIGHT - 2 - high, width=step - 2, height=high, class_=class_)
            if count
            else ""
        )
        parts.append(svg.element("g", tip, hit, bar))
    edge = step * 7
    parts += [svg.line(0, HEIGHT - 1, WIDTH, HEIGHT - 1, "grid"), svg.line(edge, 0, edge, HEIGHT, "bound")]
    return svg.picture(WIDTH, HEIGHT, "Histogram of error over bound, in decades; the line is the bound", *parts)


def _name(place: int) -> str:
    edges = ("1e-6", "1e-5", "1e-4", "1e-3", "0.01", "0.1", "1", "10")
    if place == 0:
        return "|error| / bound up to 1e-6"
    return f"above {edges[-1]}" if place == DECADES - 1 else f"{edges[place - 1]} to {edges[place]}"
