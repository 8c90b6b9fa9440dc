"""What formulas need in TileLang beside its own functions: extremes with NaN handed on, truths, the logistic function.

T.max becomes fmaxf on a GPU, which drops NaN, and a comparison of a value with itself may be folded away: a sum of both
is what is left where neither is at least the other.
"""

from __future__ import annotations

from typing import Any

import tilelang.language as T
import tvm


def maximum(a: Any, b: Any) -> Any:
    """The larger of two float32 expressions, NaN when either is."""
    return T.if_then_else(a >= b, a, T.if_then_else(b >= a, b, a + b))


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two float32 expressions, NaN when either is."""
    return T.if_then_else(a <= b, a, T.if_then_else(b <= a, b, a + b))


def logistic(x: Any) -> Any:
    """1 / (1 + exp(-x)); 0 where exp overflows."""
    return T.float32(1) / (T.float32(1) + T.exp(-x))


def magnitude(x: Any) -> Any:
    """|x|: the C target prints no fabs."""
    return T.if_then_else(x < T.float32(0), -x, x)


def no_number(x: Any) -> Any:
    """1 for NaN, 0 for every number and infinity."""
    return T.if_then_else(either(x >= T.float32(0), x < T.float32(0)), T.float32(0), T.float32(1))


def either(first: Any, second: Any) -> Any:
    """One condition or the other."""
    return tvm.tirx.any(first, second)


def negated(condition: Any) -> Any:
    """The opposite of a condition."""
    return tvm.tirx.Not(condition)
