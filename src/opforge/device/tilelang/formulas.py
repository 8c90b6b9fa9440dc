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


def expm1(x: Any) -> Any:
    """exp(x) - 1, relative to itself near zero: Taylor's series there."""
    p = T.float32(1 / 40320)
    for divisor in (5040, 720, 120, 24, 6, 2):
        p = p * x + T.float32(1 / divisor)
    near = T.if_then_else(x < T.float32(0), x > T.float32(-0.5), x < T.float32(0.5))
    return T.if_then_else(near, x + x * x * p, T.exp(x) - T.float32(1))


def log1p(x: Any) -> Any:
    """log(1 + x), relative to itself near zero: 2 atanh(x / (2 + x)) by its series there."""
    s = x / (T.float32(2) + x)
    t = s * s
    p = T.float32(1 / 11)
    for divisor in (9, 7, 5, 3):
        p = p * t + T.float32(1 / divisor)
    near = T.if_then_else(x < T.float32(0), x > T.float32(-0.3), x < T.float32(0.3))
    return T.if_then_else(near, T.float32(2) * (s + s * t * p), T.log(T.float32(1) + x))


def erfc(x: Any) -> Any:
    """1 - erf(x), relative to itself where x is large (Numerical Recipes, 6.2: 1.2e-7)."""
    z = magnitude(x)
    t = T.float32(1) / (T.float32(1) + T.float32(0.5) * z)
    p = T.float32(0.17087277)
    for factor in (-0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368):
        p = p * t + T.float32(factor)
    y = t * T.exp(p * t + T.float32(-1.26551223) - z * z)
    # near zero the terms of the exponent cancel, and all results would be off by the same
    far = T.if_then_else(x < T.float32(0), T.float32(2) - y, y)
    return T.if_then_else(z < T.float32(0.5), T.float32(1) - T.erf(x), far)
