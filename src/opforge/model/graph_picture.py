"""The graph of a model's block as a picture: nodes in ranks by what they wait for, edges as curves between them.

Ranks are longest paths; within a rank nodes stand near those that they are joined to (Sugiyama, Tagawa and Toda,
"Methods for visual understanding of hierarchical system structures", 1981). An edge over several ranks keeps a lane in
each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from opforge.core.language import units
from opforge.model import describe
from opforge.model.analysis import Analysis, Row
from opforge.model.links import Links
from opforge.model.nodes import FORWARD
from opforge.model.pictures import block_of, clean_each, colour_of, groups_of, in_block, kind_of
from opforge.report import svg
from opforge.report.record_text import clean, short

BOX, TALL, GAP, STEP, LANE = 150.0, 34.0, 14.0, 58.0, 12.0
MOST = 220
"""Nodes in a picture: more is no picture."""
SWEEPS = 8

Spot = tuple[str, int, int]
"""("node", its index, its rank), or a lane of an edge: ("lane", the edge's number, the rank)."""


def graph(analysis: Analysis) -> tuple[str, str]:
    """The picture of the repeated block, or of the whole forward pass where nothing is repeated, and its caption."""
    block, times = block_of(analysis)
    rows = [row for row in analysis.rows if row.node.phase == FORWARD and in_block(row, block)]
    if not rows:
        return "", ""
    left_out = max(0, len(rows) - MOST)
    rows = rows[:MOST]
    what = f"{block}, one of {times}" if block and times > 1 else block or "the whole forward pass"
    caption = f"{what}: {units.plural(len(rows), 'node')}, views left out" + (
        f", {left_out} more not drawn" if left_out else ""
    )
    return _drawn(analysis, rows, caption), caption


def _drawn(analysis: Analysis, rows: Sequence[Row], caption: str) -> str:
    links = Links(analysis.graph)
    by_index = {row.node.index: row for row in rows}
    edges = [
        (maker, index)
        for index in by_index
        for maker in dict.fromkeys(links.makers[index])
        if maker is not None and maker in by_index
    ]
    ranks = _ranks(list(by_index), edges)
    lines, chains = _lines(ranks, edges)
    _sort(lines, chains)
    places = _places(lines, chains)
    low = min(place - _wide(spot) / 2 for spot, place in places.items())
    places = {spot: place - low + 4 for spot, place in places.items()}
    width = max(place + _wide(spot) / 2 for spot, place in places.items()) + 4
    height = len(lines) * STEP
    groups = groups_of(analysis, rows)
    drawn = [_edge(chain, places) for chain in chains]
    drawn += [
        _box(by_index[spot[1]], place, spot[2] * STEP + 6, groups)
        for spot, place in places.items()
        if spot[0] == "node"
    ]
    picture = svg.picture(width, height, f"Graph of {caption}", *drawn)
    # as wide as it is drawn: a narrow graph stretched over the page has letters like a poster's
    return picture.replace("<svg ", f'<svg width="{svg.coordinate(width)}" ', 1)


def _ranks(nodes: Sequence[int], edges: Sequence[tuple[int, int]]) -> dict[int, int]:
    """The longest path to each node. Those that wait for nothing stand right above the first that reads them."""
    above: dict[int, list[int]] = defaultdict(list)
    below: dict[int, list[int]] = defaultdict(list)
    for source, target in edges:
        above[target].append(source)
        below[source].append(target)
    ranks: dict[int, int] = {}
    for node in sorted(nodes):
        ranks[node] = max((ranks[one] + 1 for one in above[node]), default=0)
    for node in sorted(nodes, reverse=True):
        if not above[node] and below[node]:
            ranks[node] = min(ranks[one] for one in below[node]) - 1
    least = min(ranks.values())
    return {node: rank - least for node, rank in ranks.items()}


def _lines(ranks: Mapping[int, int], edges: Sequence[tuple[int, int]]) -> tuple[list[list[Spot]], list[list[Spot]]]:
    """The spots of each rank, and the chain of spots that each edge goes through."""
    lines: list[list[Spot]] = [[] for _ in range(max(ranks.values()) + 1)]
    for node, rank in ranks.items():
        lines[rank].append(("node", node, rank))
    chains = []
    for number, (source, target) in enumerate(edges):
        lanes: list[Spot] = [("lane", number, rank) for rank in range(ranks[source] + 1, ranks[target])]
        for lane in lanes:
            lines[lane[2]].append(lane)
        chains.append([("node", source, ranks[source]), *lanes, ("node", target, ranks[target])])
    return lines, chains


def _neighbours(chains: Sequence[Sequence[Spot]]) -> tuple[dict[Spot, list[Spot]], dict[Spot, list[Spot]]]:
    above: dict[Spot, list[Spot]] = defaultdict(list)
    below: dict[Spot, list[Spot]] = defaultdict(list)
    for chain in chains:
        for upper, lower in pairwise(chain):
            below[upper].append(lower)
            above[lower].append(upper)
    return above, below


def _sort(lines: list[list[Spot]], chains: Sequence[Sequence[Spot]]) -> None:
    """Each rank by the mean place of its neighbours, downwards and upwards in turns."""
    above, below = _neighbours(chains)
    for sweep in range(SWEEPS):
        sides, order = (above, range(1, len(lines))) if sweep % 2 == 0 else (below, range(len(lines) - 2, -1, -1))
        for rank in order:
            other = lines[rank - 1 if sides is above else rank + 1]
            at = {spot: place for place, spot in enumerate(other)}
            own = {spot: place for place, spot in enumerate(lines[rank])}
            lines[rank].sort(key=lambda spot: (_mean([at[one] for one in sides[spot]], own[spot]), own[spot]))


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _wide(spot: Spot) -> float:
    return BOX if spot[0] == "node" else LANE


def _places(lines: Sequence[Sequence[Spot]], chains: Sequence[Sequence[Spot]]) -> dict[Spot, float]:
    """The middle of each spot: near its neighbours, in order, without overlap."""
    above, below = _neighbours(chains)
    places: dict[Spot, float] = {}
    for line in lines:
        at = 0.0
        for spot in line:
            places[spot] = at + _wide(spot) / 2
            at += _wide(spot) + GAP
    for sweep in range(SWEEPS):
        for line in lines if sweep % 2 == 0 else reversed(lines):
            sides = above if sweep % 2 == 0 else below
            wanted = [_mean([places[one] for one in sides[spot]], places[spot]) for spot in line]
            forth = list(wanted)
            for at in range(1, len(line)):
                room = (_wide(line[at - 1]) + _wide(line[at])) / 2 + GAP
                forth[at] = max(forth[at], forth[at - 1] + room)
            shift = sum(want - got for want, got in zip(wanted, forth, strict=True)) / max(1, len(line))
            for spot, place in zip(line, forth, strict=True):
                places[spot] = place + shift
    return places


def _edge(chain: Sequence[Spot], places: Mapping[Spot, float]) -> str:
    points = [(places[spot], spot[2] * STEP + 6 + (TALL if at == 0 else 0.0)) for at, spot in enumerate(chain)]
    path = f"M{svg.coordinate(points[0][0])} {svg.coordinate(points[0][1])}"
    for (x, y), (px, py) in zip(points[1:], points, strict=False):
        middle = (y + py) / 2
        path += "C" + " ".join(svg.coordinate(value) for value in (px, middle, x, middle, x, y))
    return svg.element("path", d=path, class_="edge")


def _box(row: Row, middle: float, top: float, groups: Mapping[int, tuple[int, str]]) -> str:
    node = row.node
    group = groups.get(node.index)
    lines = [
        f"{node.name}: {node.operator}",
        node.module or "the model itself",
        describe.shapes(node),
        f"{describe.seconds(row.seconds)}, {units.percent(row.share)}; roof "
        f"{describe.seconds(row.roof.time_s if row.roof else None)} ({describe.limiter(row)})",
        f"opforge: {row.cover.operator or row.cover.reason}",
        *([f"could be one kernel with its neighbours: {group[1]}"] if group else []),
    ]
    left = middle - BOX / 2
    box = svg.element(
        "rect",
        svg.title(clean_each("\n".join(lines))),
        x=left,
        y=top,
        width=BOX,
        height=TALL,
        rx=6.0,
        class_=f"node-box{' grouped' if group else ''}",
    )
    stripe = svg.element("rect", x=left, y=top, width=6.0, height=TALL, rx=3.0, class_=f"b{colour_of(node)}")
    words = f"{node.label} {node.place}" if kind_of(node) in (0, 2) else node.label
    name = svg.text(short(clean(words), 19), left + 12, top + 14, "strong")
    below = f"{units.percent(row.share)}" + (f" · {short(clean(group[1]), 14)}" if group else "")
    return box + stripe + name + svg.text(below, left + 12, top + 28, "tick")
