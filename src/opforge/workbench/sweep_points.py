"""What a sweep measures: the workloads and configs that several axes, shapes or tunables span, and the lines of its
table."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from opforge.core.definition.implementation import Config, Implementation
from opforge.core.definition.operator import Operator, Workload
from opforge.core.definition.own_shapes import MOST_SHAPES, axis_text, parse_shape, variadic
from opforge.core.evidence.inspection import Inspection
from opforge.core.evidence.record import Record
from opforge.core.language.errors import OpforgeError, UsageError
from opforge.timing.curve import parse_axis
from opforge.workbench.configs import setting_value

SIZES = r"(\(\)|\d+(x\d+)*)"
"""The sizes of an axis that stands for several: 2x3, or () for none."""


@dataclass(frozen=True, kw_only=True)
class Swept:
    """One swept axis: its values as a shape or a config is written. `tunable`: of configs, not of shapes."""

    name: str
    values: tuple[str, ...]
    tunable: bool


@dataclass(frozen=True, kw_only=True)
class SweepLine:
    """One timed point of a sweep; SI units.

    shape       the workload's free axes, as `--shape` takes them
    config      the tunables, as records write them; "default" where none was asked for
    gflops, gbytes_per_s   work and traffic of the definition over the median time, in 1e9 a second
    intensity   FLOP per byte
    of_roof     share of the roofline bound; None without one
    registers   per thread, of the kernel that uses most; occupancy: of the one that has least; None where no compiler
                was asked (a CPU without a target), and `note` says why where one was and had no answer
    """

    shape: str
    implementation: str
    config: str
    seconds: float
    low: float
    high: float
    gflops: float
    gbytes_per_s: float
    intensity: float
    of_roof: float | None
    registers: int | None
    occupancy: float | None
    note: str


def parse_swept(operator: Operator, implementations: Sequence[Implementation], text: str) -> Swept:
    """`cols=128:4096:log`, `lead=2x3,8`, `eps=1e-6,1e-3` or a tunable, `BLOCK=256,512`. Raises UsageError."""
    name, equals, values = (part.strip() for part in text.partition("="))
    tunables = {tunable for item in implementations for tunable in item.space}
    listed = tuple(dict.fromkeys(value.strip() for value in values.split(",")))
    several = name in variadic(operator)
    if several or name in {scalar.name for scalar in (*operator.scalars, *operator.presence)}:
        strange = next((value for value in listed if not (re.fullmatch(SIZES, value) if several else value)), None)
        if not equals or strange is not None:
            raise UsageError(f"{text!r} gives {name} no value. Write them in a list: --axis {name}=8,2x3.")
        return Swept(name=name, values=listed, tunable=False)
    if name in tunables and name not in operator.axes:
        return Swept(name=name, values=listed, tunable=True)
    axis = parse_axis(text)
    if axis.name not in operator.free_axes:
        known = [*operator.free_axes, *(scalar.name for scalar in operator.scalars), *sorted(tunables)]
        first = operator.free_axes[0]
        sizes = "8,2x3" if first in variadic(operator) else "64,128"
        raise UsageError(
            f"{operator.name} has no axis {axis.name!r} to sweep. It has: {', '.join(known)}. Example: --axis "
            f"{first}={sizes}"
        )
    return Swept(name=axis.name, values=tuple(map(str, axis.values)), tunable=False)


def spanned(
    operator: Operator, base: Workload | None, swept: Sequence[Swept], *, zipped: bool
) -> tuple[tuple[Workload, ...], tuple[Config, ...]]:
    """The workloads of the swept axes, the rest as `base` has it, and the configs of the swept tunables. zipped: the
    first value of each axis with the first of the others, and so on; tunables are always tried on every shape. Raises
    UsageError.
    """
    twice = next((axis.name for place, axis in enumerate(swept) if axis.name in {a.name for a in swept[:place]}), None)
    if twice is not None:
        raise UsageError(f"--axis gives {twice} twice. Write its values in one: --axis {twice}=A,B,C.")
    axes = [axis for axis in swept if not axis.tunable]
    if zipped and (len(axes) < 2 or len({len(axis.values) for axis in axes}) != 1):
        lengths = ", ".join(f"{axis.name}: {len(axis.values)}" for axis in axes)
        raise UsageError(f"--zip needs two axes or more, of as many values each ({lengths}). Without it: every pair.")
    if axes and base is None:
        raise UsageError(f"{operator.name} has no workload to take the other axes from. Add one to its op.py.")
    tuples = zip(*(axis.values for axis in axes), strict=True) if zipped else _product(axes)
    shapes: dict[str, Workload] = {}
    for values in tuples if base is not None and axes else ():
        assert base is not None
        given = {name: axis_text(base.axes[name]) for name in operator.free_axes}
        given |= {name: str(value) for name, value in base.scalars.items()}
        given |= {axis.name: value for axis, value in zip(axes, values, strict=True)}
        given |= {"layout": base.layout.replace(" ", "+")} if base.layout != "contiguous" else {}
        workload = parse_shape(operator, ",".join(f"{name}={value}" for name, value in given.items()))
        shapes[workload.name] = workload
    tunables = [axis for axis in swept if axis.tunable]
    configs = tuple(
        Config(tuple((axis.name, setting_value(value)) for axis, value in zip(tunables, values, strict=True)))
        for values in (_product(tunables) if tunables else ())
    )
    return tuple(shapes.values()), configs


def _product(axes: Sequence[Swept]) -> Iterable[tuple[str, ...]]:
    count = math.prod(len(axis.values) for axis in axes)
    if count > MOST_SHAPES:
        raise UsageError(f"That is {count} points, and {MOST_SHAPES} is the most. Give fewer values, or --zip.")
    return itertools.product(*(axis.values for axis in axes))


def lines_of(records: Iterable[Record], inspect: Callable[[Record], Inspection] | None = None) -> list[SweepLine]:
    """A line per record that has a time. inspect: what a compiler makes of its kernel, asked once for each; what it
    refuses with is the line's note.
    """
    lines = []
    for record in records:
        if record.timing is None:
            continue
        registers, occupancy, note = _use(record, inspect)
        seconds = record.timing.median_s
        low, high = record.timing.interval_s
        lines.append(
            SweepLine(
                shape=record.workload,
                implementation=record.implementation,
                config=str(record.config),
                seconds=seconds,
                low=low,
                high=high,
                gflops=record.cost.flops / seconds / 1e9,
                gbytes_per_s=record.cost.bytes / seconds / 1e9,
                intensity=record.cost.intensity,
                of_roof=record.roof_s / seconds if record.roof_s else None,
                registers=registers,
                occupancy=occupancy,
                note=note,
            )
        )
    return lines


def _use(record: Record, inspect: Callable[[Record], Inspection] | None) -> tuple[int | None, float | None, str]:
    if inspect is None or record.backend not in ("triton", "cuda", "tilelang"):
        return None, None, ""
    try:
        kernels = inspect(record).kernels
    except OpforgeError as error:
        return None, None, str(error).splitlines()[0]
    resident = [kernel.residency.fraction for kernel in kernels if kernel.residency is not None]
    return max((kernel.registers for kernel in kernels), default=None), min(resident, default=None), ""


def best_of(lines: Iterable[SweepLine]) -> dict[str, tuple[SweepLine, ...]]:
    """By shape, its lines from the fastest on whose intervals reach that of the fastest: the first is the best, and the
    others can't be told apart from it.
    """
    by_shape: dict[str, list[SweepLine]] = {}
    for line in sorted(lines, key=lambda line: line.seconds):
        by_shape.setdefault(line.shape, []).append(line)
    return {shape: tuple(line for line in found if line.low <= found[0].high) for shape, found in by_shape.items()}


def lines_for_picture(
    lines: Iterable[SweepLine], axis: str, workloads: Mapping[str, Workload]
) -> dict[str, list[tuple[float, SweepLine]]]:
    """By label (implementation, config, the other axes), the points along one axis. The size of an axis that stands
    for several is their product.
    """
    found: dict[str, list[tuple[float, SweepLine]]] = {}
    for line in lines:
        size = workloads[line.shape].axes[axis]
        rest = [part for part in line.shape.split(",") if "=" in part and not part.startswith(f"{axis}=")]
        label = " ".join([line.implementation, *([line.config] if line.config != "default" else []), *rest])
        across = math.prod(size) if isinstance(size, tuple) else size
        found.setdefault(label, []).append((float(max(across, 1)), line))
    return found
