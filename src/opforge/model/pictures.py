"""Pictures of an analysed model: a treemap of its time, the roofline of its nodes, the graph of its block."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from opforge.core.language import units
from opforge.model import describe
from opforge.model.analysis import Analysis, Row
from opforge.model.fusible import CONVOLUTION
from opforge.model.nodes import BACKWARD, Node
from opforge.report import svg
from opforge.report.record_text import clean, short
from opforge.report.roof_chart import roof_picture, roofs

KINDS = ("product of matrices", "attention", "convolution", "norm or reduction", "elementwise", "data movement")
COLOURS = (4, 1, 5, 3, 2, 0)
REDUCES = re.compile(r"norm|mean|sum|softmax|amax|amin|cumsum|topk|argmax|nll|cross_entropy|pool|var")


def kind_of(node: Node) -> int:
    """Which of KINDS a node is."""
    if "attention" in node.base:
        return 1
    if node.base in CONVOLUTION or "convolution" in node.base:
        return 2
    if node.work.unit == "matrix":
        return 0
    if REDUCES.search(node.base):
        return 3
    return 4 if node.work.cost.flops else 5


def colour_of(node: Node) -> int:
    """The number of a node's colour in the style sheet."""
    return COLOURS[kind_of(node)]


def without_numbers(path: str) -> str:
    """A module's path with the numbers of layers left open: one name for all layers."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path) or "(the model itself)"


@dataclass(frozen=True, kw_only=True)
class Likes:
    """Nodes that do the same: one operator on one set of shapes, in modules that differ by their number alone."""

    rows: tuple[Row, ...]

    @property
    def first(self) -> Row:
        """One that stands for all."""
        return self.rows[0]

    @property
    def seconds(self) -> float:
        """All of them together."""
        return sum(row.seconds or 0.0 for row in self.rows)

    @property
    def share(self) -> float:
        """Of all nodes' time."""
        return sum(row.share for row in self.rows)

    @property
    def module(self) -> str:
        """Where they are."""
        return without_numbers(self.first.node.module)


def alike(rows: Iterable[Row]) -> list[Likes]:
    """Rows that do the same, together; what takes longest first."""
    found: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        node = row.node
        key = (node.operator, node.phase, without_numbers(node.module), node.inputs, node.outputs)
        found[key].append(row)
    return sorted((Likes(rows=tuple(each)) for each in found.values()), key=lambda one: -one.seconds)


Box = tuple[float, float, float, float]


def squarified(sizes: Sequence[float], box: Box) -> list[Box]:
    """A rectangle of each size within a box (x, y, width, height), as near to squares as rows of them allow.

    `sizes` fall. Source: Bruls, Huizing and van Wijk, "Squarified treemaps", 2000.

    >>> squarified([1.0, 1.0], (0.0, 0.0, 2.0, 1.0))
    [(0.0, 0.0, 1.0, 1.0), (1.0, 0.0, 1.0, 1.0)]
    """
    total = sum(sizes)
    x, y, width, height = box
    if not sizes or total <= 0 or width <= 0 or height <= 0:
        return []
    scale = width * height / total
    areas = [size * scale for size in sizes]
    found: list[Box] = []
    at = 0
    while at < len(areas):
        side = max(min(width, height), 1e-9)
        row = [areas[at]]
        while at + len(row) < len(areas) and _worst([*row, areas[at + len(row)]], side) <= _worst(row, side):
            row.append(areas[at + len(row)])
        thick = sum(row) / side
        along = y if width >= height else x
        for area in row:
            length = area / thick if thick > 0 else 0.0
            found.append((x, along, thick, length) if width >= height else (along, y, length, thick))
            along += length
        if width >= height:
            x, width = x + thick, max(0.0, width - thick)
        else:
            y, height = y + thick, max(0.0, height - thick)
        at += len(row)
    return found


def _worst(row: Sequence[float], side: float) -> float:
    """The worst ratio of sides in a row of these areas along a side."""
    total = sum(row)
    low = min(row)
    return max(side**2 * max(row) / total**2, total**2 / (side**2 * low)) if low > 0 else float("inf")


WIDTH, HEIGHT, HEAD = 1080.0, 460.0, 17.0


def treemap(analysis: Analysis) -> str:
    """Time as area: a frame for each kind of module, in it a rectangle for each kind of call."""
    modules: dict[str, list[Likes]] = defaultdict(list)
    for one in alike(analysis.rows):
        if one.seconds > 0:
            modules[one.first.node.module_class or "outside of modules"].append(one)
    frames = sorted(modules.items(), key=lambda item: -sum(one.seconds for one in item[1]))
    if not frames:
        return ""
    boxes = squarified([sum(one.seconds for one in inside) for _, inside in frames], (0.0, 0.0, WIDTH, HEIGHT))
    parts = []
    for (name, inside), (x, y, width, height) in zip(frames, boxes, strict=True):
        head = HEAD if height > 2.2 * HEAD and width > 60 else 0.0
        share = sum(one.share for one in inside)
        rest = (x + 1, y + 1 + head, max(0.0, width - 2), max(0.0, height - 2 - head))
        parts.append(svg.element("rect", x=x, y=y, width=width, height=height, class_="tree-frame"))
        if head:
            words = short(clean(f"{name} {units.percent(share)}"), max(3, int(width / 7)))
            parts.append(svg.text(words, x + 5, y + 13, "tree-head"))
        for one, box in zip(inside, squarified([each.seconds for each in inside], rest), strict=False):
            parts.append(_leaf(one, box))
    label = f"Treemap of {units.seconds(analysis.total_s)} in {len(frames)} kinds of modules; area is time"
    return svg.picture(WIDTH, HEIGHT, label, *parts)


def _leaf(one: Likes, box: Box) -> str:
    x, y, width, height = box
    node = one.first.node
    title = "\n".join(
        (
            f"{node.label} × {len(one.rows)} in {one.module}",
            describe.shapes(node),
            f"{units.seconds(one.seconds)}, {units.percent(one.share)} of the time",
            f"opforge: {one.first.cover.operator or one.first.cover.reason}",
        )
    )
    rectangle = svg.element(
        "rect",
        svg.title(clean_each(title)),
        x=x,
        y=y,
        width=width,
        height=height,
        class_=f"tree-leaf b{colour_of(node)}",
    )
    if width < 46 or height < 16:
        return rectangle
    # of many products it is the module that tells them apart
    name = node.place if kind_of(node) in (0, 2) and node.place else node.label
    name += " ←" if node.phase == BACKWARD else ""
    words = [svg.text(short(clean(name), int(width / 7)), x + 5, y + 14, "tree-name")]
    if height > 32:
        words.append(svg.text(units.percent(one.share), x + 5, y + 28, "tree-name"))
    return rectangle + "".join(words)


def clean_each(text: str) -> str:
    """Several lines, each without characters that steer."""
    return "\n".join(clean(line) for line in text.split("\n"))


def node_roofline(analysis: Analysis) -> str:
    """Every node with arithmetic under the device's roofs, at the rate that it reaches; equal nodes are one mark."""
    points = []
    for one in alike(analysis.rows):
        cost = one.first.node.work.cost
        mean = one.seconds / len(one.rows)
        if cost.intensity > 0 and mean > 0:
            points.append((one, cost.intensity, cost.flops / mean))
    if not points:
        return ""
    dtypes = sorted({shape.dtype for one, _, _ in points for shape in one.first.node.outputs})
    limits = roofs(analysis.device, dtypes)

    def drawn(x: svg.Scale, y: svg.Scale) -> list[str]:
        return [_mark(one, x(intensity), y(rate), rate) for one, intensity, rate in points]

    label = f"Roofline with {units.plural(len(points), 'kind')} of nodes: arithmetic intensity against FLOP/s"
    return roof_picture([(intensity, rate) for _, intensity, rate in points], limits, drawn, label)


def _mark(one: Likes, px: float, py: float, rate: float) -> str:
    node = one.first.node
    roof = one.first.roof
    lines = [
        f"{node.label} × {len(one.rows)} in {one.module}",
        describe.shapes(node),
        f"{units.seconds(one.seconds / len(one.rows))} each, {units.flops_per_s(rate)}, "
        f"{units.number(node.work.cost.intensity)} FLOP/byte",
        f"roof {units.seconds(roof.time_s)} ({roof.limiter})" if roof is not None else "no roof is known",
    ]
    kind = kind_of(node)
    radius = 3.2 + 7.0 * min(1.0, one.share) ** 0.5
    return svg.marker(kind, px, py, radius, f"mark b{COLOURS[kind]}", svg.title(clean_each("\n".join(lines))))


def legend(rows: Iterable[Row]) -> list[tuple[str, str]]:
    """The kinds that a model has, each with its mark."""
    kinds = sorted({kind_of(row.node) for row in rows})
    return [
        (KINDS[kind], svg.picture(14, 14, KINDS[kind], svg.marker(kind, 7, 7, 5, f"mark b{COLOURS[kind]}")))
        for kind in kinds
    ]


def block_of(analysis: Analysis) -> tuple[str, int]:
    """The repeated module that most time is spent in, by its first path, and how often it is repeated; ("", 1) where
    none is.
    """
    spent: dict[str, float] = defaultdict(float)
    numbers: dict[str, set[str]] = defaultdict(set)
    for row in analysis.rows:
        found = re.match(r"(.*?)\.(\d+)(?:\.|$)", row.node.module)
        if found:
            spent[found.group(1)] += row.seconds or 0.0
            numbers[found.group(1)].add(found.group(2))
    if not spent:
        return "", 1
    holder = max(spent, key=lambda path: spent[path])
    first = min(numbers[holder], key=int)
    return f"{holder}.{first}", len(numbers[holder])


def in_block(row: Row, block: str) -> bool:
    """Whether a row belongs to a module or to one within it."""
    return not block or row.node.module == block or row.node.module.startswith(f"{block}.")


def groups_of(analysis: Analysis, rows: Sequence[Row]) -> Mapping[int, tuple[int, str]]:
    """For nodes in a group that could be one kernel the number of the group and its kind; groups that save most go
    first, and none overlap.
    """
    inside = {row.node.index for row in rows}
    taken: dict[int, tuple[int, str]] = {}
    number = 0
    for group in sorted(analysis.groups, key=lambda one: -one.fusion.saved):
        members = set(group.fusion.nodes)
        if members <= inside and not members & set(taken):
            number += 1
            taken |= dict.fromkeys(members, (number, group.fusion.kind))
    return taken
