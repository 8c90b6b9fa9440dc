"""What arithmetic may do to each element of a result: the noun of every bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Errors:
    """What arithmetic may do to each element of an output (float64 tensors of its shape, or what broadcasts to it).

    largest   the most that an element may be off
    typical   the most that the root mean square over many elements may be
    reached   how large the numbers are that are added up on the way; where that leaves the range of float32, an
              infinity or NaN is right. None: as the result
    """

    largest: Any
    typical: Any
    reached: Any = None

    def __add__(self, other: Errors) -> Errors:
        """Of two errors that do not know of each other."""
        return Errors(
            self.largest + other.largest,
            (self.typical * self.typical + other.typical * other.typical) ** 0.5,
            _larger(self.reached, other.reached),
        )

    def times(self, weight: Any) -> Errors:
        """What `weight`, a factor or a derivative, makes of them. A small one brings no sum back into the range."""
        size = abs(weight)
        reached = None if self.reached is None else _larger(self.reached, self.reached * size)
        return Errors(self.largest * size, self.typical * size, reached)


def _larger(a: Any, b: Any) -> Any:
    """Element by element; None knows of nothing."""
    if a is None or b is None:
        return a if b is None else b
    return a.maximum(b)
