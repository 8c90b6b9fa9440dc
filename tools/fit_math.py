"""Derives the coefficients of device/include/opforge/numeric/math.h and prints them; needs mpmath.

    python tools/fit_math.py

Each function is written with a quotient P(t) / Q(t) on an interval, and P, Q minimise the largest error: a
least-squares fit at Chebyshev nodes, linear once it is multiplied by the last denominator (Sanathanan and Koerner,
"Transfer function synthesis as a ratio of two complex polynomials", IEEE Trans. Automatic Control 8, 1963), reweighted
by its own error until the error is level (Lawson's algorithm: Lawson 1961; Ellacott and Williams, SIAM J. Numer. Anal.
13, 1976).
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import mpmath as mp

mp.mp.dps = 40
ROUNDS = 60


def chebyshev_nodes(low: float, high: float, count: int) -> list[mp.mpf]:
    """`count` nodes that crowd towards both ends of the interval."""
    middle, half = (mp.mpf(high) + low) / 2, (mp.mpf(high) - low) / 2
    return [middle + half * mp.cos(mp.pi * (2 * k + 1) / (2 * count)) for k in range(count)]


Function = Callable[[mp.mpf], mp.mpf]


def fit(
    target: Function, low: float, high: float, top: int, bottom: int, unit: Function | None = None
) -> tuple[list[mp.mpf], list[mp.mpf], float]:
    """P of degree `top` and Q of degree `bottom` with Q(0) = 1, and the largest error at the nodes, in units of
    `unit(t)`;
    without a unit the error is relative."""
    nodes = chebyshev_nodes(low, high, 12 * (top + bottom + 2))
    values = [target(t) for t in nodes]
    units = [unit(t) for t in nodes] if unit else values
    weights = [mp.mpf(1)] * len(nodes)
    denominators = [mp.mpf(1)] * len(nodes)
    best: tuple[list[mp.mpf], list[mp.mpf], float] | None = None
    for _ in range(ROUNDS):
        rows, right = [], []
        for t, f, u, w, d in zip(nodes, values, units, weights, denominators, strict=True):
            scale = mp.sqrt(w) / (u * d)
            rows.append([scale * t**k for k in range(top + 1)] + [-scale * f * t**k for k in range(1, bottom + 1)])
            right.append(scale * f)
        solution = mp.qr_solve(mp.matrix(rows), mp.matrix(right))[0]
        p = [solution[k] for k in range(top + 1)]
        q = [mp.mpf(1)] + [solution[top + k] for k in range(1, bottom + 1)]
        denominators = [mp.polyval(q[::-1], t) for t in nodes]
        errors = [
            abs((mp.polyval(p[::-1], t) / d - f) / u)
            for t, f, u, d in zip(nodes, values, units, denominators, strict=True)
        ]
        worst = max(errors)
        if best is None or worst < best[2]:
            best = (p, q, float(worst))
        weights = [w * (e + worst / 1000) for w, e in zip(weights, errors, strict=True)]
        total = sum(weights) / len(weights)
        weights = [w / total for w in weights]
    assert best is not None
    return best


def as_float(value: mp.mpf) -> str:
    """The nearest float32 as a hexadecimal literal."""
    return float(struct.unpack("f", struct.pack("f", float(value)))[0]).hex() + "f"


def show(name: str, p: list[mp.mpf], q: list[mp.mpf], worst: float) -> None:
    print(f"{name}: largest error {worst:.2g} before rounding the coefficients")
    print("  P, from the constant on:", ", ".join(as_float(c) for c in p))
    if len(q) > 1:
        print("  Q, from the constant on:", ", ".join(as_float(c) for c in q))


def main() -> None:
    half_ln2 = float(mp.log(2) / 2) * 1.0001
    # the nodes never hit 0, where (exp(r) - 1 - r) / r^2 would be 0/0
    show(
        "(exp(r) - 1 - r) / r^2 on |r| <= ln(2)/2",
        *fit(lambda r: (mp.exp(r) - 1 - r) / r**2, -half_ln2, half_ln2, 4, 0),
    )
    show("tanh(x) / x in x^2 on |x| <= 9.0625", *fit(lambda t: mp.tanh(mp.sqrt(t)) / mp.sqrt(t), 0, 9.0625**2, 4, 4))
    square = mp.mpf(3.9375) ** 2

    def erf_over_x(s: mp.mpf) -> mp.mpf:
        x = mp.sqrt((s + 1) / 2 * square)
        return mp.erf(x) / x

    show("erf(x) / x in s = 2 (x / 3.9375)^2 - 1 on |s| <= 1", *fit(erf_over_x, -1, 1, 15, 0))
    print("  2 / 3.9375^2:", as_float(2 / square))
    square_cdf = mp.mpf(5) ** 2

    def root(s: mp.mpf) -> mp.mpf:
        return mp.sqrt((s + 1) / 2 * square_cdf)

    # the error is absolute once it is multiplied by x
    show(
        "(Phi(x) - 1/2) / x in s = 2 (x / 5)^2 - 1 on |s| <= 1",
        *fit(lambda s: (mp.ncdf(root(s)) - 0.5) / root(s), -1, 1, 12, 0, lambda s: 1 / root(s)),
    )
    print("  2 / 5^2:", as_float(2 / square_cdf))
    high = struct.unpack("f", struct.pack("I", struct.unpack("I", struct.pack("f", float(mp.log(2))))[0] & 0xFFFFF000))[
        0
    ]
    print("ln(2) in two parts:", float(high).hex() + "f", as_float(mp.log(2) - mp.mpf(high)))


if __name__ == "__main__":
    main()
