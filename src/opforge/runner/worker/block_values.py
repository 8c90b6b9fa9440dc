"""Values that stand together: rows, first and last parts of rows that are -inf, NaN or very low.

One NaN among normal numbers says nothing of a kernel that takes a row block by block: it is a block of -inf that leaves
a running maximum at -inf, and a row of low values that a maximum which starts at -1e4 loses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

FIRST = 64
"""Columns of a first or last part: a block of most kernels. Half of a row where that is less."""
LOW = -2e4
"""Below what kernels begin a maximum with, and within float16."""


def low_values(shape: tuple[int, ...], largest: float, normal: Any, generator: Any) -> Any:
    """Rows, first parts and last parts of about -2e4; other rows are normal."""
    return _in_parts(shape, normal, generator, (lambda part: part * 8 + max(LOW, -largest / 2),))


def blocked_values(shape: tuple[int, ...], largest: float, normal: Any, generator: Any) -> Any:
    """The same of -inf, and, of few rows, of NaN and of values near the least of the format."""
    minus, nan, least = -math.inf, math.nan, -min(1e30, largest / 4)
    return _in_parts(
        shape,
        normal,
        generator,
        (lambda part: part * 0 + minus,),
        (lambda part: part * 0 + nan, lambda part: part * 0 + least),
    )


def _in_parts(
    shape: tuple[int, ...],
    values: Any,
    generator: Any,
    fillings: tuple[Callable[[Any], Any], ...],
    whole_rows: tuple[Callable[[Any], Any], ...] = (),
) -> Any:
    """`values` with one kind of row after the other, from a kind that is drawn: a first part that is filled, a whole
    row, a last part, all but one element, a normal row.
    """
    import torch

    if not shape or not math.prod(shape):
        return values
    rows = values.reshape(-1, shape[-1]).clone()
    cols = shape[-1]
    part = min(FIRST, max(1, cols // 2))
    kinds: list[tuple[slice, Callable[[Any], Any]]] = []
    for fill in fillings:
        kinds += [(slice(0, part), fill), (slice(0, cols), fill), (slice(cols - part, cols), fill)]
        kinds += [(slice(1, cols), fill)]
    kinds += [(slice(0, cols), fill) for fill in whole_rows]
    begin = int(torch.randint(0, len(kinds) + 1, (), generator=generator, device=generator.device))
    for row in range(min(len(rows), 4 * len(kinds))):
        kind = (row + begin) % (len(kinds) + 1)
        if kind < len(kinds):
            place, fill = kinds[kind]
            rows[row, place] = fill(rows[row, place])
    return rows.reshape(shape)
