"""What a program costs before it is written: operations, traffic, intensity, growth, and the roofline's verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from opforge.core.definition.device import DeviceSpec
from opforge.core.definition.operator import Cost
from opforge.core.language.units import flops_per_s, seconds
from opforge.forge.program.ir import FREE, Program
from opforge.roofline import Bound, bound


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """What one call of a program does at the least.

    operations   how many floating-point operations there are for each combination of axes; a function as exp counts as
                 one
    growth       in O(), the largest term
    """

    operations: tuple[tuple[tuple[str, ...], int], ...]
    growth: str
    read: Mapping[str, tuple[str, ...]]
    written: Mapping[str, tuple[str, ...]]
    matrix: bool = False
    """Whether tensor cores may do it: a product of matrices."""

    @property
    def flops(self) -> str:
        """The operations as an expression over the axes (core.language.expr)."""
        terms = [
            " * ".join([*([str(count)] if count > 1 or not axes else []), *map(_factor, axes)])
            for axes, count in self.operations
        ]
        return " + ".join(terms) or "0"

    def cost(self, axes: Mapping[str, int], itemsize: int) -> Cost:
        """FLOPs and least traffic in bytes for these sizes; a `*name` has the product of its axes."""
        return Cost(
            flops=sum(count * _size(shape, axes) for shape, count in self.operations),
            bytes_read=itemsize * sum(_size(shape, axes) for shape in self.read.values()),
            bytes_written=itemsize * sum(_size(shape, axes) for shape in self.written.values()),
        )


def analysed(program: Program) -> Analysis:
    """The Analysis of a program."""
    counts: Counter[tuple[str, ...]] = Counter()
    for value in program.values:
        if value.operation not in FREE:
            below = {axis for number in value.arguments for axis in program.values[number].axes}
            axes = tuple(axis for axis in program.axes if axis in below) if value.reduces else value.axes
            # a term of a product of matrices is multiplied and added
            counts[axes] += 2 if value.operation == "dot" else 1
    most = max((write.axes for write in program.writes), key=len)
    largest = max([*counts, most], key=len)
    return Analysis(
        operations=tuple(sorted(counts.items(), key=lambda item: -len(item[0]))),
        growth=f"O({' * '.join(axis.lstrip('*') for axis in largest)})",
        read=dict(program.reads),
        written={write.name: write.axes for write in program.writes},
        matrix=any(value.operation == "dot" for value in program.values),
    )


def verdicts(
    analysis: Analysis, axes: Mapping[str, int], dtype: str, itemsize: int, devices: Iterable[DeviceSpec]
) -> list[tuple[str, Bound | None, Cost]]:
    """Each device's name with the roofline Bound for these sizes, memory cold; None where its rates are unknown."""
    cost = analysis.cost(axes, itemsize)
    unit = "matrix" if analysis.matrix else "vector"
    return [(device.name, bound(cost, device, dtype, unit, cache="cold"), cost) for device in devices]


def described(analysis: Analysis, axes: Mapping[str, int], devices: Iterable[DeviceSpec]) -> str:
    """The analysis as text: growth, FLOPs, bytes and, for each device, what limits float32 and its least time."""
    sizes = ", ".join(f"{name} = {size}" for name, size in axes.items())
    cost = analysis.cost(axes, 4)
    moved = [" * ".join(map(_factor, shape)) for shape in (*analysis.read.values(), *analysis.written.values())]
    lines = [
        f"growth     {analysis.growth}",
        f"flops      {analysis.flops}",
        f"bytes      itemsize * ({' + '.join(moved)})",
        f"intensity  {cost.intensity:.3g} FLOP per byte in float32, at {sizes}",
    ]
    for name, limit, _ in verdicts(analysis, axes, "float32", 4, devices):
        if limit is None:
            lines.append(f"{name:<18} no rate known: opforge machine measures one")
            continue
        rate = flops_per_s(limit.flops_per_s) if limit.flops_per_s else "unknown"
        lines.append(f"{name:<18} limited by {limit.limiter}: {seconds(limit.time_s)} at best (arithmetic {rate})")
    return "\n".join(lines)


def _factor(axis: str) -> str:
    return f"prod({axis[1:]})" if axis.startswith("*") else axis


def _size(shape: Iterable[str], axes: Mapping[str, int]) -> int:
    size = 1
    for axis in shape:
        size *= axes[axis.lstrip("*")]
    return size
