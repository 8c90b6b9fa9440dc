"""Functions that formulas have and Triton lacks, in float32, for expressions of any shape: expm1, log1p, tanh, erfc.

Near zero each is relative to its result, as PyTorch's are: exp(x) - 1 loses what x is below 6e-8.
"""

import triton
import triton.language as tl


@triton.jit
def expm1(x):
    """exp(x) - 1, within 4 ulp for |x| < 0.4, where Taylor's series is left after its eighth power."""
    p = 1.0 / 40320
    p = p * x + 1.0 / 5040
    p = p * x + 1.0 / 720
    p = p * x + 1.0 / 120
    p = p * x + 1.0 / 24
    p = p * x + 1.0 / 6
    p = p * x + 0.5
    return tl.where(tl.abs(x) < 0.5, x + x * x * p, tl.exp(x) - 1.0)


@triton.jit
def log1p(x):
    """log(1 + x), within 4 ulp for |x| < 0.25: 2 atanh(x / (2 + x)) by its series."""
    s = x / (2.0 + x)
    t = s * s
    p = 1.0 / 11
    p = p * t + 1.0 / 9
    p = p * t + 1.0 / 7
    p = p * t + 1.0 / 5
    p = p * t + 1.0 / 3
    return tl.where(tl.abs(x) < 0.3, 2.0 * s + 2.0 * s * t * p, tl.log(1.0 + x))


@triton.jit
def tanh(x):
    """The hyperbolic tangent, within 6 ulp: opforge/numeric/math.h has the same quotient."""
    # from here on the result rounds to 1; asked this way round, NaN stays NaN
    x = tl.where(x > 9.0625, 9.0625, x)
    x = tl.where(x < -9.0625, -9.0625, x)
    t = x * x
    p = 1.32428726e-08 * t + 2.05284377e-05
    p = p * t + 0.00349068572
    p = p * t + 0.133768961
    p = p * t + 1.0
    q = 7.73082036e-07 * t + 0.000327761925
    q = q * t + 0.0258583277
    q = q * t + 0.46710211
    q = q * t + 1.0
    y = x * p / q
    y = tl.where(y > 1.0, 1.0, y)
    return tl.where(y < -1.0, -1.0, y)


@triton.jit
def erfc(x):
    """1 - erf(x), relative to itself where x is large (W. J. Cody's form by Numerical Recipes, 6.2: 1.2e-7)."""
    z = tl.abs(x)
    t = 1.0 / (1.0 + 0.5 * z)
    p = 0.17087277
    p = p * t - 0.82215223
    p = p * t + 1.48851587
    p = p * t - 1.13520398
    p = p * t + 0.27886807
    p = p * t - 0.18628806
    p = p * t + 0.09678418
    p = p * t + 0.37409196
    p = p * t + 1.00002368
    p = p * t - 1.26551223
    y = t * tl.exp(p - z * z)
    far = tl.where(x < 0.0, 2.0 - y, y)
    # near zero the terms of the exponent cancel, and all results would be off by the same
    return tl.where(z < 0.5, 1.0 - tl.erf(x), far)
