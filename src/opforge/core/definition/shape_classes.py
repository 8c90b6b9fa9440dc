"""Shape classes: the few shapes of an operator whose times tell where each implementation is good.

Named workloads are what models run: round sizes, whole blocks, contiguous. Between and beside them lie rows of a prime
length, few rows, operands stored the other way round. A grid has one shape for each such way to be different, few
enough to be timed in seconds; dispatch fills in between them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from opforge.core.definition.operator import Operator, Workload
from opforge.core.definition.shapes import AxisValue

Sizes = Mapping[str, AxisValue]

PREFIX = "grid_"
"""With which the name of every grid's workload begins: tables of workloads leave these out."""

VECTOR = 8
"""Elements of a 16-byte load in the 16-bit dtypes: a multiple of them, or not, is another class."""

ROWS = ((65536, 512), (16384, 2048), (4096, 8192), (2048, 16384), (1024, 32768), (512, 65536), (128, 262144))
"""2^25 elements: rows from what a warp holds to what no multiprocessor holds."""
ROWS_BESIDE = ((16384, 1023), (6000, 5001), (3000, 12800), (600, 50257), (16, 8192), (24, 65536))
"""An odd length, one that is no power of two, and so few rows that multiprocessors are without any."""
ROWS_CPU = ((2048, 512), (512, 4096), (32, 65536), (700, 1023))

PRODUCTS: tuple[tuple[tuple[int, int, int], str], ...] = (
    ((3072, 5120, 4096), "contiguous"),
    ((2500, 6000, 3000), "contiguous"),
    ((2049, 4099, 3071), "contiguous"),
    ((4096, 4098, 2050), "contiguous"),
    ((4096, 4096, 4096), "contiguous transposed"),
    ((2500, 6000, 5000), "contiguous transposed"),
    ((2049, 4099, 3071), "contiguous transposed"),
    ((4096, 4096, 4096), "transposed contiguous"),
    ((32, 6144, 8192), "contiguous transposed"),
    ((255, 16384, 2048), "contiguous"),
    ((16384, 768, 1024), "contiguous"),
    ((768, 768, 16384), "contiguous"),
)
"""(m, n, k) and layout: whole tiles, tails, rows that no 16-byte load is aligned to, each operand the other way round,
few tiles, a long sum.
"""
PRODUCTS_CPU: tuple[tuple[tuple[int, int, int], str], ...] = (
    ((384, 384, 384), "contiguous"),
    ((127, 513, 255), "contiguous"),
    ((256, 512, 512), "contiguous transposed"),
    ((4, 2048, 1024), "contiguous"),
)

VECTORS = ((1 << 26,), (5_000_000,), (4095, 4097), (1 << 20,))
VECTORS_CPU = ((1 << 20,), (999_999,))


def shape_grid(operator: Operator, *, cpu: bool) -> tuple[Workload, ...]:
    """The grid of an operator: the one that its definition gives; else by the names of its axes; for axes of no known
    family its own workloads, smaller and odd.

    Parameters are those of the operator's first workload that fits the device, so that what is timed is the kind of
    call that models make.
    """
    scale = "laptop" if cpu else "gpu"
    if operator.grid:
        return tuple(replace(item, name=PREFIX + item.name) for item in operator.grid if item.scale == scale)
    known = [workload for workload in operator.workloads if workload.scale == scale] or list(operator.workloads)
    if not known:
        return ()
    first = known[0]
    grid = []
    for sizes, layout in _family(operator, cpu) or _beside(first.axes):
        name = PREFIX + _sizes(sizes) + "".join(f"_{word[0]}" for word in layout.split() if layout != "contiguous")
        source = f"shape class: {_sizes(sizes)}" + (f", {layout}" if layout != "contiguous" else "")
        axes = operator.completed(sizes, operator.scalar_values(first.scalars))
        grid.append(Workload(name=name, axes=axes, source=source, scale=scale, scalars=first.scalars, layout=layout))
    return tuple(workload for workload in grid if not any(_alike(workload, other) for other in known))


def _family(operator: Operator, cpu: bool) -> list[tuple[Sizes, str]]:
    axes = set(operator.free_axes)
    wide = next((name for name in ("cols", "classes") if axes == {"lead", name}), None)
    if wide is not None:
        rows = ROWS_CPU if cpu else ROWS + ROWS_BESIDE
        return [({"lead": (count,), wide: cols}, "contiguous") for count, cols in rows]
    if axes in ({"m", "n", "k"}, {"rows", "n", "k"}):
        few = (lambda count: count) if "m" in axes else (lambda count: (count,))
        # a linear layer's operands have their own order, and its callers have no other; derived operands (scales) have
        # theirs
        any_layout = len(operator.inputs) == 2 and "m" in axes
        rows_name = "m" if "m" in axes else "rows"
        products = PRODUCTS_CPU if cpu else PRODUCTS
        return [
            ({rows_name: few(m), "n": n, "k": k}, layout)
            for (m, n, k), layout in products
            if any_layout or layout == "contiguous"
        ]
    if axes == {"shape"}:
        return [({"shape": shape}, "contiguous") for shape in (VECTORS_CPU if cpu else VECTORS)]
    return []


def _beside(axes: Sizes) -> list[tuple[Sizes, str]]:
    """An eighth of the largest axis, and every large axis one longer."""
    largest = max(axes, key=lambda name: _count(axes[name]), default=None)
    if largest is None:
        return []
    smaller = {name: _scaled(value, 8) if name == largest else value for name, value in axes.items()}
    odd = {name: _longer(value) for name, value in axes.items()}
    return [(smaller, "contiguous"), (odd, "contiguous")]


def _scaled(value: AxisValue, divisor: int) -> AxisValue:
    if isinstance(value, tuple):
        return (max(1, value[0] // divisor), *value[1:]) if value else value
    return max(1, value // divisor)


def _longer(value: AxisValue) -> AxisValue:
    if isinstance(value, tuple):
        return (*value[:-1], _one_longer(value[-1])) if value else value
    return _one_longer(value)


def _one_longer(size: int) -> int:
    return size + 1 if size > 32 else size


def _count(value: AxisValue) -> int:
    return math.prod(value) if isinstance(value, tuple) else value


def _alike(one: Workload, other: Workload) -> bool:
    """Whether a named workload tells what a shape of the grid would: the same parameters and layout, vectors where
    there are vectors, and no axis twice as long.
    """
    if one.layout != other.layout or dict(one.scalars) != dict(other.scalars):
        return False
    pairs = [(max(1, _count(one.axes[name])), max(1, _count(other.axes[name]))) for name in one.axes]
    return all(0.5 <= a / b <= 2 and (a % VECTOR == 0) == (b % VECTOR == 0) for a, b in pairs)


def _sizes(axes: Sizes) -> str:
    return "x".join(
        "x".join(map(str, value)) if isinstance(value, tuple) else str(value) for value in axes.values() if value != ()
    )
