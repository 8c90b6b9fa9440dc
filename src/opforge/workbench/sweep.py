"""A sweep: one workload at several sizes of an axis, and the curve that each implementation's times make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from opforge.core.definition.operator import Operator, Workload
from opforge.core.evidence.record import Record
from opforge.core.language.errors import UsageError
from opforge.registry import Registry
from opforge.timing.curve import Axis, CurvePoint


def sized(operator: Operator, base: Workload | None, axis: Axis) -> dict[int, Workload]:
    """A workload per value of the axis, the other axes as `base` has them. Raises UsageError."""
    if base is None:
        raise UsageError(f"{operator.name} has no workload to take the other axes from. Add one to its op.py.")
    if not isinstance(base.axes.get(axis.name), int):
        free = [name for name, value in base.axes.items() if isinstance(value, int)]
        raise UsageError(f"{operator.name} has no axis {axis.name!r} to sweep. It has: {', '.join(free) or 'none'}.")
    return {
        value: replace(
            base,
            name=f"{base.name}_{axis.name}_{value}",
            axes=operator.completed({**base.axes, axis.name: value}, operator.scalar_values(base.scalars)),
            source=f"sweep of {axis.name}, the rest as {base.name}",
        )
        for value in axis.values
    }


def curves_of(records: Iterable[Record], values: Mapping[str, int]) -> dict[str, list[CurvePoint]]:
    """The timed points of each implementation, by size. Work is bytes where memory limits, else FLOP."""
    curves: dict[str, list[CurvePoint]] = {}
    for record in records:
        timing = record.timing
        if timing is None or record.workload not in values:
            continue
        low, high = timing.interval_s
        work = record.cost.flops if record.limiter == "compute" and record.cost.flops else record.cost.bytes
        share = record.roof_s / timing.median_s if record.roof_s else None
        point = CurvePoint(
            value=values[record.workload], seconds=timing.median_s, low=low, high=high, work=float(work), of_roof=share
        )
        curves.setdefault(record.implementation, []).append(point)
    return {name: sorted(points, key=lambda point: point.value) for name, points in curves.items()}


def with_workloads(registry: Registry, operator: Operator, workloads: Iterable[Workload]) -> Registry:
    """The registry with this operator's workloads in place of its own: what a bench of them is given."""
    return Registry(registry.homes, {operator.name: replace(operator, workloads=tuple(workloads))})


def fastest_of(curves: Mapping[str, Sequence[CurvePoint]]) -> dict[int, float]:
    """By size, the least time that any implementation took, in seconds."""
    fastest: dict[int, float] = {}
    for points in curves.values():
        for point in points:
            fastest[point.value] = min(point.seconds, fastest.get(point.value, point.seconds))
    return fastest
