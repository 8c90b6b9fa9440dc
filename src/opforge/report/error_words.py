"""How much of its bound a Pass used: the arithmetic apart from the store's rounding, which is every kernel's."""

from __future__ import annotations

import math

from opforge.core.definition.dtypes import DTYPES
from opforge.core.evidence.verdict import Metrics, Pass
from opforge.core.language import units
from opforge.report.record_text import error_share

NARROW = ("float16", "bfloat16")
"""Formats in which half a step of the output is most of the bound."""


def half_step(value: float, dtype: str) -> float:
    """Half the spacing of a format's values at `value`: what storing a result in it may add to an error.

    >>> half_step(1.5, "float16") == 2.0**-11, half_step(0.0, "float16") == 2.0**-25
    (True, True)
    """
    kind = DTYPES[dtype]
    exponent = math.frexp(value)[1] - 1 if value else kind.min_exponent
    return math.ldexp(0.5, max(exponent, kind.min_exponent) - (kind.significand - 1))


def of_arithmetic(metrics: Metrics, dtype: str) -> float | None:
    """Share of the arithmetic's part of the bound that the worst element used beyond the rounding of its store; None
    where that rounding is no large part of the bound.
    """
    if dtype not in NARROW or not math.isfinite(metrics.worst_ratio) or not math.isfinite(metrics.worst_expected):
        return None
    rounding = half_step(metrics.worst_expected, dtype)
    if not metrics.worst_bound / 2 <= rounding < metrics.worst_bound:
        return None
    error = abs(metrics.worst_actual - metrics.worst_expected)
    return max(0.0, error - rounding) / (metrics.worst_bound - rounding)


def error_words(verdict: Pass, dtype: str) -> str:
    """|error| / bound of the worst element; in a 16-bit format with the share of the arithmetic, which tells kernels
    apart where the store's rounding does not.
    """
    words = error_share(verdict.worst_ratio)
    shares = [of_arithmetic(metrics, dtype) for checked in verdict.checked for metrics in checked.metrics]
    known = [share for share in shares if share is not None]
    return f"{words} ({units.percent(max(known))} arithmetic)" if known else words
