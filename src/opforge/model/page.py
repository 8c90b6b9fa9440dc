"""The page of an analysis: one HTML file that needs nothing else."""

from __future__ import annotations

import importlib.resources
from collections.abc import Sequence
from typing import Any

from opforge.core.language import units
from opforge.model import describe, graph_picture, pictures
from opforge.model.analysis import Analysis, Row
from opforge.report.record_text import clean, clean_lines

MOST_NODES = 400
"""Lines of the table of nodes; the JSON beside the page has all."""


def analysis_page(analysis: Analysis, *, when: str) -> str:
    """The page. Texts of the model are shown as text, never as markup.

    when   a date and a time, for the head
    """
    import jinja2
    from markupsafe import Markup

    def printable(value: object) -> object:
        return clean_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("opforge.model", "templates"),
        autoescape=True,
        finalize=printable,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["drawn"] = Markup
    shared = importlib.resources.files("opforge.report").joinpath("templates/report.css")
    own = importlib.resources.files("opforge.model").joinpath("templates/analysis.css")
    style = shared.read_text(encoding="utf-8") + own.read_text(encoding="utf-8")
    graph, caption = graph_picture.graph(analysis)
    likes = pictures.alike(analysis.rows)
    return environment.get_template("analysis.html.j2").render(
        style=Markup(style),
        title=clean(analysis.model),
        about=clean(analysis.about),
        device=clean(analysis.device.name),
        when=when,
        route=describe.route_words(analysis),
        note=analysis.graph.note,
        time=describe.time_words(analysis),
        predicted=analysis.measured is None,
        tiles=_tiles(analysis),
        treemap=pictures.treemap(analysis),
        legend=pictures.legend(analysis.rows),
        gain_titles=describe.GAIN_TITLES,
        by_operator=[describe.gain_cells(one) for one in analysis.by_operator[:20]],
        by_module=[describe.gain_cells(one) for one in analysis.by_module[:20]],
        replaceable=_replaceable(analysis),
        fusible=describe.fusible_cells(analysis),
        fusible_titles=describe.FUSIBLE_TITLES,
        extremes=_extremes(analysis),
        stretches=[
            (one.module or "(the model itself)", f"{one.first} … {one.last}", str(one.count), units.seconds(one.roof_s))
            for one in analysis.stretches[:8]
        ],
        call=describe.seconds(call.value if (call := analysis.device.ceiling("call")) else None),
        roofline=pictures.node_roofline(analysis),
        graph=graph,
        caption=caption,
        nodes=[_node(one) for one in likes[:MOST_NODES]],
        left_out=max(0, len(likes) - MOST_NODES),
    )


def _tiles(analysis: Analysis) -> list[tuple[str, str]]:
    flops = sum(row.node.work.cost.flops for row in analysis.rows)
    moved = sum(row.node.work.cost.bytes for row in analysis.rows)
    return [
        (describe.seconds(analysis.whole_s), "a call" + ("" if analysis.measured else ", predicted")),
        (units.flops(flops), "arithmetic"),
        (units.size(moved), "moved by all nodes"),
        (str(len(analysis.rows)), "nodes without views"),
        (units.percent(analysis.replaceable.share), "of the time has an operator of opforge"),
        (describe.ratio(analysis.replaceable.at_roof), "as fast if those ran at their roof"),
    ]


def _replaceable(analysis: Analysis) -> str:
    one = analysis.replaceable
    return (
        f"opforge has operators for {units.percent(one.share)} of the time: {', '.join(one.operators) or 'none'}. At "
        f"their roof the model would be {describe.ratio(one.at_roof)} as fast, and {describe.ratio(one.limit)} if they "
        "took no time."
    )


def _extremes(analysis: Analysis) -> list[tuple[str, str, list[tuple[str, str, str]]]]:
    """Tables of the most extreme nodes: a heading, what the figure is, and its lines."""

    def lines(rows: Sequence[Row], figure: Any) -> list[tuple[str, str, str]]:
        return [(row.node.label, row.node.module or "(the model itself)", figure(row)) for row in rows]

    return [
        ("Most compute-bound", "FLOP per byte", lines(analysis.compute_bound(), _intensity)),
        ("Most time under the memory roof", "time", lines(analysis.memory_bound(), _time)),
        ("Largest tensors", "size", lines(analysis.largest(), _size)),
    ]


def _intensity(row: Row) -> str:
    return units.number(row.node.work.cost.intensity)


def _size(row: Row) -> str:
    return units.size(max((one.bytes for one in row.node.outputs), default=0))


def _time(row: Row) -> str:
    return describe.seconds(row.seconds)


def _node(one: pictures.Likes) -> dict[str, str]:
    node, roof, count = one.first.node, one.first.roof, len(one.rows)
    cost = node.work.cost
    each = one.seconds / count
    return {
        "operator": node.label,
        "count": str(count),
        "module": one.module,
        "phase": node.phase,
        "shapes": describe.shapes(node),
        "flops": units.flops(cost.flops) if cost.flops else "–",
        "bytes": units.size(cost.bytes),
        "intensity": units.number(cost.intensity) if cost.flops else "–",
        "roof": f"{describe.seconds(roof.time_s)} {roof.limiter}" if roof is not None else "unknown",
        "time": describe.seconds(each),
        "share": units.percent(one.share),
        "of_roof": units.percent(min(1.0, roof.time_s / each)) if roof is not None and each > 0 else "–",
        "opforge": one.first.cover.operator or "–",
        "reason": one.first.cover.shape or one.first.cover.reason,
    }
