"""The neighbourhood of an element, for people: what should be there beside what is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opforge.core.evidence.verdict import Window

ROWS = 5
COLUMNS = 6


def window(output: str, index: Sequence[int], expected: Any, actual: Any, wrong: Any) -> Window | None:
    """Up to ROWS x COLUMNS elements around `index`, in the output's last two axes. The tensors are of one shape.

    None for an output without elements.
    """
    if not expected.numel():
        return None
    shape = tuple(expected.shape)
    place = tuple(index) if len(index) == len(shape) else (0,) * len(shape)
    lead, tail = place[:-2], place[-2:]
    low, high = [], []
    for position, extent, reach in zip(tail, shape[-2:], (ROWS, COLUMNS)[2 - len(tail) :], strict=True):
        first = max(0, min(position - reach // 2, extent - reach))
        low.append(first)
        high.append(min(extent, first + reach))
    picked = tuple(slice(start, end) for start, end in zip(low, high, strict=True))

    def rows(tensor: Any, kind: type) -> Any:
        part = tensor[lead][picked] if picked else tensor.reshape(1)
        part = part.reshape(-1, part.shape[-1])
        return tuple(tuple(kind(value) for value in row) for row in part.tolist())

    return Window(
        output=output,
        corner=(*lead, *low),
        expected=rows(expected, float),
        actual=rows(actual, float),
        wrong=rows(wrong, bool),
    )
