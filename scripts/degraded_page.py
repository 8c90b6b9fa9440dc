"""The page of scripts/degraded.py: a picture of what was recovered, and a table of every number behind it."""

from __future__ import annotations

import html
import importlib.resources
from collections.abc import Mapping, Sequence
from typing import Any

from opforge.core.language import units
from opforge.report import svg

WIDTH, LEFT, RIGHT, ROW, TOP = 1080.0, 330.0, 1040.0, 46.0, 34.0


def picture(rows: Sequence[Mapping[str, Any]]) -> str:
    """Bars of speed beside the original (1.0): old choice, re-tuned; a line where the roof stands. SVG."""
    scale = svg.linear(0.0, 1.2, LEFT, RIGHT)
    floor = TOP + ROW * len(rows)
    parts = []
    for tick in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2):
        parts.append(svg.line(scale(tick), TOP - 8, scale(tick), floor, "grid"))
        parts.append(svg.text(f"{tick:.1f}", scale(tick), floor + 16, "", text_anchor="middle"))
    parts.append(svg.text("speed beside the original; upper bar: old choice, lower: re-tuned; dashed: roof", LEFT, 16))
    for place, row in enumerate(rows):
        y = TOP + ROW * place
        parts.append(svg.text(f"{row['task']}, {row['condition']}", 6, y + 22))
        for value, offset, kind in ((row["old_recovery"], 4, "b1"), (row["recovery"], 20, "b0")):
            length = max(1.0, scale(min(1.2, value)) - LEFT)
            parts.append(svg.element("rect", x=LEFT, y=y + offset, width=length, height=13, class_=kind))
            words = f"{value:.2f}" if value else "refused"
            parts.append(svg.text(words, LEFT + length + 6, y + offset + 11))
        x = scale(min(1.2, row["roof_allows"]))
        parts.append(svg.line(x, y, x, y + 38, "roof"))
    return svg.picture(WIDTH, floor + 28, "Speed beside the original in each condition", *parts)


def page(told: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """HTML that needs nothing else. told, rows: of scripts/degraded.py."""
    style = importlib.resources.files("opforge.report").joinpath("templates/report.css").read_text(encoding="utf-8")
    heads = (
        "kernel and call",
        "condition",
        "before",
        "old choice",
        "re-tuned",
        "roof",
        "of the original",
        "roof allows",
        "of what is left",
        "16 trials find",
        "optimum before",
        "optimum now",
    )
    lines = []
    for row in rows:
        cells = (
            row["task"],
            row["condition"],
            units.seconds(row["before_s"]),
            units.seconds(row["old_s"]) if row["old_s"] else row["old_refused"] or "refused",
            units.seconds(row["new_s"]),
            units.seconds(row["roof_s"]),
            f"{row['old_recovery']:.2f} → {row['recovery']:.2f}",
            f"{row['roof_allows']:.2f}",
            f"{row['of_what_is_left']:.2f}" + ("" if row["enough"] else " (not enough)"),
            f"{row['searched']:.3f}" if row["searched"] else "",
            ", ".join(f"{name}={value}" for name, value in row["old_choice"].items()),
            "the same"
            if row["new_choice"] == row["old_choice"]
            else ", ".join(f"{name}={value}" for name, value in row["new_choice"].items()),
        )
        lines.append("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells) + "</tr>")
    conditions = "".join(
        f"<li><b>{html.escape(name)}</b> {html.escape(why)}</li>" for name, why in told["conditions"].items()
    )
    roofs = "; ".join(f"{name}: {task['roof']}" for name, task in told["tasks"].items())
    title = f"A degraded {told['device']}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<style>{style}</style></head><body><main class="wide"><div class="top"><h1>{html.escape(title)}</h1>'
        f'<p class="sub">{html.escape(told["day"])}. The same kernels while a part of the device is taken: with the '
        "choice from before, and re-tuned. Everything was timed in the condition itself, the roof too.</p></div>"
        f'<section class="group">{picture(rows)}</section><ul class="notes">{conditions}</ul>'
        f'<p class="fine">Roofs: {html.escape(roofs)}. "Roof allows" is the roof\'s speed in the condition over its '
        'speed before. "Of what is left" is the recovered speed over that share. "16 trials find": of the best, by a '
        "search that begins with the times from before.</p>"
        f'<div style="overflow-x:auto"><table class="evidence"><thead><tr>'
        f"{''.join(f'<th>{head}</th>' for head in heads)}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        "</main></body></html>\n"
    )
