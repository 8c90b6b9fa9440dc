"""An analysis in words and as plain data."""

from __future__ import annotations

import math
from typing import Any

from opforge.core.language import units
from opforge.model.analysis import Analysis, Gain, Group, Row, workloads_of
from opforge.model.nodes import JOINT, RECORDED, Node

ROWS = 12


def route_words(analysis: Analysis) -> str:
    """How the graph was had."""
    graph = analysis.graph
    kind = "a training step" if graph.training else "a forward pass"
    if graph.route == RECORDED:
        return f"{kind}, recorded by module hooks, since torch.export has no graph of it ({graph.why})"
    return f"{kind}, by {'torch.export and AOTAutograd' if graph.route == JOINT else 'torch.export'}"


def time_words(analysis: Analysis) -> str:
    """What the seconds are."""
    if analysis.measured is None:
        return f"predicted from the roofs of {analysis.device.name}: nothing was run"
    one = analysis.measured
    outside = units.percent(one.outside)
    return (
        f"measured on {analysis.device.name}, {units.plural(one.rounds, 'round')}, {one.how}: "
        f"{units.seconds(one.whole)} a call, of which {outside} outside of any operator"
        + (f"; {one.unsteady}" if one.unsteady else "")
    )


def seconds(value: float | None) -> str:
    """A time, or nothing where none is known."""
    return units.seconds(value) if value is not None and value > 0 else "–"


def ratio(value: float) -> str:
    """A ratio of speeds; one without limit in words."""
    return units.ratio(value) if math.isfinite(value) else "unlimited"


def shapes(node: Node) -> str:
    """What goes in and what comes out."""
    return f"{', '.join(map(str, node.inputs)) or '()'} → {', '.join(map(str, node.outputs)) or '()'}"


def limiter(row: Row) -> str:
    """What a roof is made of."""
    return row.roof.limiter if row.roof is not None else "unknown"


def gain_cells(gain: Gain) -> tuple[str, ...]:
    """A Gain as cells of a table: name, calls, time, share, roof, at the roof, limit, operators."""
    return (
        gain.name,
        str(gain.count),
        seconds(gain.seconds),
        units.percent(gain.share),
        seconds(gain.roof_s),
        ratio(gain.at_roof),
        ratio(gain.limit),
        ", ".join(gain.operators) or "–",
    )


FUSIBLE_TITLES = (
    "neighbours that could be one kernel",
    "groups",
    "time",
    "share",
    "fused roof",
    "at roof",
    "not moved",
    "opforge has",
)


def fusible_cells(analysis: Analysis) -> list[tuple[str, ...]]:
    """Groups by their kind as cells of a table: kind, how many, time, share, fused roof, gain, bytes saved,
    operator.
    """
    kinds: dict[tuple[str, str], list[Group]] = {}
    for group in analysis.groups:
        kinds.setdefault((group.fusion.kind, group.cover.operator or "–"), []).append(group)
    lines: list[tuple[str, ...]] = []
    for (kind, operator), found in sorted(kinds.items(), key=lambda item: -sum(one.gain.seconds for one in item[1])):
        spent = sum(group.gain.seconds for group in found)
        least = sum(group.roof.time_s for group in found if group.roof is not None)
        lines.append(
            (
                kind,
                str(len(found)),
                seconds(spent),
                units.percent(spent / analysis.total_s) if analysis.total_s else "–",
                seconds(least),
                ratio(analysis.without(max(0.0, spent - least))),
                units.size(sum(group.fusion.saved for group in found)),
                operator,
            )
        )
    return lines


GAIN_TITLES = ("operator", "nodes", "time", "share", "roof", "at roof", "limit", "opforge has")


def as_data(analysis: Analysis) -> dict[str, Any]:
    """The analysis as JSON takes it."""
    return {
        "model": analysis.model,
        "about": analysis.about,
        "graph": {
            "route": analysis.graph.route,
            "why_not_exported": analysis.graph.why,
            "note": analysis.graph.note,
            "training": analysis.graph.training,
            "nodes": len(analysis.graph.nodes),
        },
        "device": analysis.device.name,
        "dtype": analysis.dtype,
        "measured": analysis.measured is not None,
        "whole_s": analysis.whole_s,
        "nodes_s": analysis.total_s,
        "rounds": analysis.measured.rounds if analysis.measured is not None else 0,
        "nodes": [_row(row) for row in analysis.rows],
        "fusible": [
            {
                **_gain(group.gain),
                "nodes": [analysis.graph.nodes[index].name for index in group.fusion.nodes],
                "module": group.fusion.module,
                "phase": group.fusion.phase,
                "bytes_saved": group.fusion.saved,
                "shape": group.cover.shape,
                "reason": group.cover.reason,
            }
            for group in analysis.groups
        ],
        "by_operator": [_gain(one) for one in analysis.by_operator],
        "by_module": [_gain(one) for one in analysis.by_module],
        "replaceable": _gain(analysis.replaceable),
        "host_bound": [
            {"first": one.first, "last": one.last, "module": one.module, "count": one.count, "roof_s": one.roof_s}
            for one in analysis.stretches
        ],
        "workloads": workloads_of(analysis),
    }


def _row(row: Row) -> dict[str, Any]:
    cost = row.node.work.cost
    return {
        "name": row.node.name,
        "operator": row.node.operator,
        "module": row.node.module,
        "class": row.node.module_class,
        "phase": row.node.phase,
        "inputs": list(map(str, row.node.inputs)),
        "outputs": list(map(str, row.node.outputs)),
        "flops": cost.flops,
        "bytes_read": cost.bytes_read,
        "bytes_written": cost.bytes_written,
        "intensity": cost.intensity,
        "roof_s": row.roof.time_s if row.roof is not None else None,
        "limiter": limiter(row),
        "seconds": row.seconds,
        "share": row.share,
        "opforge": row.cover.operator,
        "shape": row.cover.shape,
        "reason": row.cover.reason,
    }


def _gain(gain: Gain) -> dict[str, Any]:
    return {
        "name": gain.name,
        "count": gain.count,
        "seconds": gain.seconds,
        "share": gain.share,
        "roof_s": gain.roof_s,
        "at_roof": _finite(gain.at_roof),
        "limit": _finite(gain.limit),
        "operators": list(gain.operators),
    }


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None
