"""The one room where numbers become words. SI units in, short text out."""

from __future__ import annotations

import math


def _scaled(value: float, unit: str, prefixes: tuple[tuple[float, str], ...]) -> str:
    if not math.isfinite(value):
        return f"{value} {unit}"
    for factor, prefix in prefixes:
        scaled = value / factor
        # as it will be read: 999.7 us is 1.00 ms, and 9.996 us is 10.0 us
        size = abs(float(f"{scaled:.3g}"))
        if size >= 1:
            return f"{scaled:.{0 if size >= 100 else 1 if size >= 10 else 2}f} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def seconds(value: float) -> str:
    """A duration in words.

    >>> seconds(222e-6), seconds(1.5e-3), seconds(0.9e-6), seconds(999.7e-6), seconds(9.996e-6)
    ('222 us', '1.50 ms', '900 ns', '1.00 ms', '10.0 us')
    """
    return _scaled(value, "s", ((1.0, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n")))


def bytes_per_s(value: float) -> str:
    """A bandwidth in words (powers of ten, as vendors print it).

    >>> bytes_per_s(4.24e12)
    '4.24 TB/s'
    """
    return _scaled(value, "B/s", ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")))


def flops_per_s(value: float) -> str:
    """An arithmetic rate in words.

    >>> flops_per_s(780e12)
    '780 TFLOP/s'
    """
    return _scaled(value, "FLOP/s", ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")))


def size(value: float) -> str:
    """A number of bytes in words (powers of two).

    >>> size(3 * 2**20)
    '3.00 MiB'
    """
    return _scaled(value, "B", ((2.0**40, "Ti"), (2.0**30, "Gi"), (2.0**20, "Mi"), (2.0**10, "Ki")))


def percent(fraction: float) -> str:
    """A fraction in words.

    >>> percent(0.973), percent(0.0123)
    ('97%', '1.2%')
    """
    return f"{fraction * 100:.0f}%" if fraction >= 0.1 else f"{fraction * 100:.2g}%"


def number(value: float) -> str:
    """A bare number, four significant digits; NaN and infinities by name.

    >>> number(0.000123456), number(3.0), number(float("nan"))
    ('0.0001235', '3', 'nan')
    """
    return f"{value:.4g}"


def ratio(value: float) -> str:
    """How many times as fast.

    >>> ratio(1.834), ratio(12.34), ratio(0.5), ratio(250.0)
    ('1.83x', '12.3x', '0.50x', '250x')
    """
    if not math.isfinite(value):
        return f"{value}x"
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2 if value >= 0.1 else 3}f}x"


def flops(value: float) -> str:
    """A number of floating-point operations in words.

    >>> flops(2.1e9)
    '2.10 GFLOP'
    """
    return _scaled(value, "FLOP", ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")))


def plural(count: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "case"), plural(3, "case"), plural(0, "failure")
    ('1 case', '3 cases', '0 failures')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(words: list[str] | tuple[str, ...]) -> str:
    """Words in a row, as English has them.

    >>> listed(["a"]), listed(["a", "b", "c"]), listed([])
    ('a', 'a, b and c', 'none')
    """
    if len(words) < 2:
        return words[0] if words else "none"
    return f"{', '.join(words[:-1])} and {words[-1]}"


def trimmed(words: str) -> str:
    """A quantity in words without zeros that say nothing, for the ticks of an axis.

    >>> trimmed("10.0 ms"), trimmed("2.50 ms"), trimmed("100 us")
    ('10 ms', '2.5 ms', '100 us')
    """
    value, _, unit = words.partition(" ")
    return f"{value.rstrip('0').rstrip('.') if '.' in value else value} {unit}"
