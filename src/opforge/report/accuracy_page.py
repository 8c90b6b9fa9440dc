"""The figures of an accuracy study: a table, a picture of errors, how they went over earlier runs, a page."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from opforge.core.evidence.error_bins import HIGHEST, LOWEST, PER_DECADE
from opforge.report import svg

COLUMNS = (
    "max_abs",
    "mean_abs",
    "max_rel",
    "mean_rel",
    "p50_abs",
    "p90_abs",
    "p99_abs",
    "kl",
    "entropy",
    "sqnr_db",
    "clip_ratio",
)
SCALES = ("amax_mean", "amax_max", "scale_mean", "scale_max")


def accuracy_text(rows: Sequence[Mapping[str, Any]], advised: Sequence[str]) -> str:
    """The figures as a table in Markdown, scales as another, and the advice."""
    lines = [f"| variant | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for row in rows:
        cells = ["" if row.get(name) is None else f"{row[name]:.3g}" for name in COLUMNS]
        lines.append(f"| {row['variant']} | {' | '.join(cells)} |")
    scaled = [row for row in rows if "scale_max" in row]
    if scaled:
        lines += ["", f"| scales | {' | '.join(SCALES)} | group: clipped |", "|---" * (len(SCALES) + 2) + "|"]
        for row in scaled:
            searched = ", ".join(f"{size}: {share:.2%}" for size, share in row["candidates"].items())
            lines.append(f"| {row['variant']} | {' | '.join(f'{row[name]:.3g}' for name in SCALES)} | {searched} |")
    return "\n".join([*lines, "", *(f"- {line}" for line in advised)])


WIDTH, PANEL, LEFT, RIGHT, TOP = 760.0, 220.0, 70.0, 210.0, 30.0
COLOURS = ("#4269d0", "#e4572e", "#3a923a", "#9c6ade", "#c98a00", "#17a2b8", "#d6336c", "#6c757d")
STYLE = "text{font:12px sans-serif;fill:#222}.grid{stroke:#ddd}.end{text-anchor:end}.middle{text-anchor:middle}"


def trends(runs: Sequence[Mapping[str, Mapping[str, Any]]], last: int = 6) -> str:
    """p99 of |error| of each variant over the last runs of one study, the newest at the right; empty for one run.

    runs   the figures by variant, the oldest first
    """
    shown = list(runs)[-last:]
    if len(shown) < 2:
        return ""
    names = list(dict.fromkeys(name for run in shown for name in run))
    lines = [f"| p99 over the last {len(shown)} runs{' |' * (len(shown) + 1)}", "|---" * (len(shown) + 1) + "|"]
    for name in names:
        cells = [f"{run[name]['p99_abs']:.3g}" if name in run else "" for run in shown]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def accuracy_picture(rows: Sequence[Mapping[str, Any]]) -> str:
    """|error| of each variant: the share of elements in each bin above, beyond each size below (1 - CDF); log-log."""
    shown = [row for row in rows if not row["variant"].endswith("stored")]
    across = svg.linear(LOWEST, HIGHEST, LEFT, WIDTH - RIGHT)
    parts = [svg.element("style", STYLE), svg.text("share of elements by |error|; below: share beyond it", LEFT, 18)]
    for panel in (0, 1):
        top = TOP + panel * (PANEL + 30)
        up = svg.logarithmic(1e-5, 1.0, top + PANEL, top)
        for tick in svg.decades(1e-5, 1.0):
            parts.append(svg.line(LEFT, up(tick), WIDTH - RIGHT, up(tick), "grid"))
            parts.append(svg.text(f"{tick:g}", LEFT - 6, up(tick) + 4, "end"))
        for place, row in enumerate(shown):
            total = sum(row["histogram"])
            shares = [count / total for count in row["histogram"]]
            values = shares if panel == 0 else [sum(shares[first:]) for first in range(len(shares))]
            points = [
                f"{svg.coordinate(across(LOWEST + (at + 0.5 * (panel == 0)) / PER_DECADE))} {svg.coordinate(up(value))}"
                for at, value in enumerate(values)
                if value >= 1e-5
            ]
            colour, dash = COLOURS[place % len(COLOURS)], "none" if place < len(COLOURS) else "6 3"
            stroke: dict[str, str | float] = {
                "fill": "none",
                "stroke": colour,
                "stroke_width": 1.6,
                "stroke_dasharray": dash,
            }
            parts.append(svg.element("path", d="M" + "L".join(points), **stroke))
            if panel == 0:
                key = top + 12 + 17 * place
                parts.append(svg.element("path", d=f"M{WIDTH - RIGHT + 6:g} {key - 4:g}h20", **stroke))
                parts.append(svg.text(row["variant"], WIDTH - RIGHT + 30, key))
    floor = TOP + 2 * PANEL + 30
    for decade in range(LOWEST, HIGHEST + 1):
        parts.append(svg.text(f"1e{decade}", across(decade), floor + 18, "middle"))
    return svg.picture(WIDTH, floor + 30, "attention's errors", *parts) + "\n"


def accuracy_page(title: str, rows: Sequence[Mapping[str, Any]], words: str) -> str:
    """A page of HTML that needs nothing else."""
    head = f"<!doctype html><meta charset=utf-8><title>{html.escape(title)}</title>"
    body = f"<h1>Accuracy</h1><p>{html.escape(title)}</p>{accuracy_picture(rows)}<pre>{html.escape(words)}</pre>\n"
    return (
        head + "<style>body{font:14px sans-serif;max-width:1100px;margin:2em auto}pre{overflow-x:auto}</style>" + body
    )
