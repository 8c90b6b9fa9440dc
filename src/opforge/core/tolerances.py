"""Tolerances that operators of one kind share. Each says how its sums may be made; see core.operator.Tolerance for the formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from opforge.core.operator import Tolerance

ROW_SUM = "cols / 32 + log2(max(cols, 2))"
"""Terms that follow one another in the sum of a row. 32: a warp, or the lanes of a vector unit, share it; the partial sums meet in a tree."""

MOVED = Tolerance(factor=0.0, roundings=0.0, about="elements move and are not computed with: every result is exact")
ONE_ADDITION = Tolerance(factor=1.0, about="one float32 addition and one rounding")


def row_sums(magnitude: Callable[..., Mapping[str, Any]] | None = None, *, rounded: Callable[..., Mapping[str, tuple[Any, Any]]] | None = None) -> Tolerance:
    """The Tolerance of results that are made from sums over rows."""
    about = "a sum is shared by at least 32 accumulators, so that cols / 32 terms follow one another"
    return Tolerance(length=ROW_SUM, magnitude=magnitude, rounded=rounded, about=about)


def row_and_column_sums(magnitude: Callable[..., Mapping[str, Any]]) -> Tolerance:
    """The Tolerance of gradients that are made from sums over rows, and from sums over all rows."""
    about = "a row's sums are shared by at least 32 accumulators; a column's may be added one after another"
    return Tolerance(length=f"{ROW_SUM} + prod(lead)", magnitude=magnitude, about=about)
