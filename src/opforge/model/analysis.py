"""An analysed model: each node with its work, its roof, its time and what opforge has for it, and what could be gained.

Gains are ceilings, told before anything is patched (Amdahl): what a replacement at the roof would give, and what one
that took no time would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from opforge.core.definition.device import DeviceSpec
from opforge.core.definition.operator import Cost
from opforge.model.clock import Measured
from opforge.model.covered import Cover, Coverage
from opforge.model.fusible import Fusion, fusions
from opforge.model.nodes import FORWARD, Graph, Node
from opforge.roofline import Bound, bound

SHORTEST_STRETCH = 4
"""Nodes in a row before they are called a host-bound stretch."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A node that moves something.

    roof      the least time that the device allows; None where none of its rates is known
    seconds   measured, or what the roof allows where nothing was measured; None without either
    share     of all nodes' seconds
    """

    node: Node
    roof: Bound | None
    seconds: float | None
    share: float
    cover: Cover


@dataclass(frozen=True, kw_only=True)
class Gain:
    """What replacing some nodes could give the whole model, as ratios of its time before and after.

    seconds   of these nodes now; roof_s   at best
    at_roof   if they ran at the device's limit
    limit     if they took no time: Amdahl's
    """

    name: str
    count: int
    seconds: float
    share: float
    roof_s: float
    at_roof: float
    limit: float
    operators: tuple[str, ...]
    covered: int


@dataclass(frozen=True, kw_only=True)
class Group:
    """Neighbours that one kernel could compute, with its gain."""

    fusion: Fusion
    gain: Gain
    roof: Bound | None
    cover: Cover


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Nodes in a row that each need less time on the device than the host needs to start one."""

    first: str
    last: str
    module: str
    count: int
    roof_s: float
    host_s: float


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """Everything that is known of a model on a device.

    measured   None where nothing was run: seconds are then the roof's, a prediction
    total_s    all nodes together
    whole_s    the model's own call; total_s where it was not measured
    """

    model: str
    about: str
    graph: Graph
    device: DeviceSpec
    dtype: str
    measured: Measured | None
    total_s: float
    whole_s: float
    rows: tuple[Row, ...]
    groups: tuple[Group, ...]
    by_operator: tuple[Gain, ...]
    by_module: tuple[Gain, ...]
    replaceable: Gain
    stretches: tuple[Stretch, ...]

    def without(self, saved_s: float) -> float:
        """How many times as fast a call would be that took `saved_s` less."""
        # on a disturbed machine a median of calls may be less than the sum of its nodes' medians
        return _ratio(max(self.whole_s, self.total_s), saved_s)

    @property
    def forward(self) -> tuple[Row, ...]:
        """The rows of the forward pass."""
        return tuple(row for row in self.rows if row.node.phase == FORWARD)

    def compute_bound(self, count: int = 5) -> list[Row]:
        """The nodes with most arithmetic for each byte, of those that arithmetic limits."""
        bound_by = [row for row in self.rows if row.roof is not None and row.roof.limiter == "compute"]
        return sorted(bound_by, key=lambda row: -row.node.work.cost.intensity)[:count]

    def memory_bound(self, count: int = 5) -> list[Row]:
        """The nodes that memory limits and that take longest there."""
        bound_by = [row for row in self.rows if row.roof is not None and row.roof.limiter == "memory"]
        return sorted(bound_by, key=lambda row: -(row.seconds or 0.0))[:count]

    def largest(self, count: int = 5) -> list[Row]:
        """The nodes that make the largest tensors."""
        return sorted(self.rows, key=lambda row: -max((one.bytes for one in row.node.outputs), default=0))[:count]


def analysis_of(
    graph: Graph,
    *,
    model: str,
    about: str,
    device: DeviceSpec,
    dtype: str,
    coverage: Coverage,
    measured: Measured | None = None,
) -> Analysis:
    """The analysis of a graph on a device, from measured times or, without them, from the device's roofs."""
    roofs = {node.index: _roof(node.work.cost, device, _dtype(node), node.work.unit) for node in graph.nodes}

    def seconds(node: Node) -> float | None:
        if measured is not None:
            return measured.nodes[node.index]
        roof = roofs[node.index]
        return roof.time_s if roof is not None else None

    # views too: a call that moves nothing takes time all the same
    total = sum(seconds(node) or 0.0 for node in graph.nodes)
    whole = measured.whole if measured is not None else total
    # as in Analysis.without
    base = max(whole, total)

    def share(spent: float) -> float:
        return spent / total if total > 0 else 0.0

    rows = tuple(
        Row(
            node=node,
            roof=roofs[node.index],
            seconds=seconds(node),
            share=share(seconds(node) or 0.0),
            cover=coverage.of_node(node),
        )
        for node in graph.nodes
        if not node.is_view
    )
    by_index = {row.node.index: row for row in rows}

    def gain(name: str, members: Iterable[Row], roof_s: float | None = None, covers: Sequence[Cover] = ()) -> Gain:
        members = list(members)
        spent = sum(row.seconds or 0.0 for row in members)
        least = sum(row.roof.time_s for row in members if row.roof is not None) if roof_s is None else roof_s
        given = covers or [row.cover for row in members]
        return Gain(
            name=name,
            count=len(members),
            seconds=spent,
            share=share(spent),
            roof_s=least,
            at_roof=_ratio(base, max(0.0, spent - least)),
            limit=_ratio(base, spent),
            operators=tuple(dict.fromkeys(cover.operator for cover in given if cover.operator)),
            covered=sum(bool(cover.operator) for cover in given),
        )

    groups = []
    for fusion in fusions(graph):
        members = [by_index[index] for index in fusion.nodes if index in by_index]
        if not members:
            continue
        unit = "matrix" if any(row.node.work.unit == "matrix" for row in members) else "vector"
        roof = _roof(fusion.cost, device, _dtype(members[0].node), unit)
        cover = coverage.of_fusion(fusion)
        least = roof.time_s if roof is not None else None
        groups.append(Group(fusion=fusion, gain=gain(fusion.kind, members, least, [cover]), roof=roof, cover=cover))
    replaceable = _replaceable(rows, groups, gain)
    return Analysis(
        model=model,
        about=about,
        graph=graph,
        device=device,
        dtype=dtype,
        measured=measured,
        total_s=total,
        whole_s=whole,
        rows=rows,
        groups=tuple(groups),
        by_operator=_grouped(rows, lambda row: row.node.label, gain),
        by_module=_grouped(rows, lambda row: row.node.module_class or "(outside of modules)", gain),
        replaceable=replaceable,
        stretches=_stretches(graph, roofs, device),
    )


def _roof(cost: Cost, device: DeviceSpec, dtype: str, unit: str) -> Bound | None:
    return bound(cost, device, dtype, unit) if cost.bytes or cost.flops else None


def _dtype(node: Node) -> str:
    """The dtype that a node computes in: that of its first floating-point tensor."""
    kinds = [shape.dtype for shape in (*node.inputs, *node.outputs)]
    return next((kind for kind in kinds if "float" in kind), kinds[0] if kinds else "float32")


def _ratio(whole: float, saved: float) -> float:
    """How many times as fast the whole is without `saved` seconds of it."""
    left = whole - saved
    return whole / left if left > 0 and whole > 0 else float("inf") if saved > 0 else 1.0


def _grouped(rows: Sequence[Row], key: Callable[[Row], str], gain: Callable[..., Gain]) -> tuple[Gain, ...]:
    """A Gain for each key, the longest first."""
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(key(row), []).append(row)
    return tuple(sorted((gain(name, members) for name, members in kinds.items()), key=lambda one: -one.seconds))


def _replaceable(rows: Sequence[Row], groups: Sequence[Group], gain: Callable[..., Gain]) -> Gain:
    """Everything that opforge has an operator for: groups that save most first, then single nodes; each node once."""
    taken: set[int] = set()
    covers: list[Cover] = []
    members: list[Row] = []
    least = 0.0
    by_index = {row.node.index: row for row in rows}
    for group in sorted(groups, key=lambda one: -one.fusion.saved):
        if group.cover.operator and not taken & set(group.fusion.nodes):
            taken |= set(group.fusion.nodes)
            members += [by_index[index] for index in group.fusion.nodes if index in by_index]
            covers.append(group.cover)
            least += group.roof.time_s if group.roof is not None else 0.0
    for row in rows:
        if row.cover.operator and row.node.index not in taken:
            members.append(row)
            covers.append(row.cover)
            least += row.roof.time_s if row.roof is not None else 0.0
    return gain("all that opforge has operators for", members, least, covers)


def _stretches(graph: Graph, roofs: dict[int, Bound | None], device: DeviceSpec) -> tuple[Stretch, ...]:
    """Stretches in which the device waits for the host, the costliest first."""
    call = device.ceiling("call")
    if call is None:
        return ()
    found: list[Stretch] = []
    run: list[Node] = []
    for node in [*graph.nodes, None]:
        if node is not None and node.is_view:
            continue
        roof = roofs[node.index] if node is not None else None
        if node is not None and roof is not None and roof.time_s < call.value:
            run.append(node)
            continue
        if len(run) >= SHORTEST_STRETCH:
            found.append(
                Stretch(
                    first=run[0].name,
                    last=run[-1].name,
                    module=run[0].module,
                    count=len(run),
                    roof_s=sum(one.time_s for item in run if (one := roofs[item.index]) is not None),
                    host_s=call.value * len(run),
                )
            )
        run = []
    return tuple(sorted(found, key=lambda one: one.roof_s - one.host_s))


def workloads_of(analysis: Analysis) -> dict[str, list[str]]:
    """The shapes in which a model calls opforge's operators, by operator, as `--shape` takes them; what takes most
    time first.
    """
    shapes: dict[str, dict[str, float]] = {}
    calls = [(group.cover, group.gain.seconds) for group in analysis.groups]
    for cover, seconds in (*calls, *((row.cover, row.seconds or 0.0) for row in analysis.rows)):
        if cover.operator and cover.shape:
            spent = shapes.setdefault(cover.operator, {})
            spent[cover.shape] = spent.get(cover.shape, 0.0) + seconds
    falling = sorted(shapes.items(), key=lambda item: -sum(item[1].values()))
    return {operator: sorted(each, key=lambda shape: -each[shape]) for operator, each in falling}
