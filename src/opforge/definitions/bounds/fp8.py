"""What FP8 does to attention: products on tensor cores that keep some 14 bits of a sum, and weights that are rounded to
8 bits before they meet the values. For bounds, on whatever has the methods of a tensor, so no library is imported.
"""

from __future__ import annotations

from typing import Any

from opforge.core.definition.rounding_errors import Errors
from opforge.definitions.bounds.sums import finite

BLOCK = 128
"""Terms after which a sum is carried on in float32."""

PHASES = 4
"""A weight is rounded relative to a running maximum that only a kernel knows: so many places of the grid are tried."""

FP8_WEIGHTS = {"float8_e4m3fn": (4, 2.0**-14), "float8_e5m2": (3, 2.0**-28)}
"""Binary digits of a weight in the format, and where they end, relative to the row's largest: a kernel multiplies
weights of up to 1 by 2^8 (2^14) to be far from the least normal number, 2^-6 (2^-14).
"""


def fp8_product_errors(a: Any, b: Any) -> Errors:
    """Of a @ b beyond those of float32, [..., m, k] and [..., k, n], as matmul_fp8 has them: a tensor core's sum of 128
    terms is off by 2^-13 of what it comes to, root mean square, by 2^-10.3 at worst among 262144 (measured on an H200);
    what is cut off makes products smaller, 2^-16 each, which adds up.
    """
    a, b = finite(a), finite(b)
    wandering: Any = 0.0
    cut: Any = 0.0
    for first in range(0, a.shape[-1], BLOCK):
        left, right = a[..., first : first + BLOCK], b[..., first : first + BLOCK, :]
        reached = (left @ right).abs() + (left.square() @ right.square()).sqrt()
        wandering = wandering + reached.square()
        cut = cut + (left.sign() @ right.sign()) * reached
    bias = 2.0**-16 * abs(cut)
    return Errors(wandering**0.5 * 2.0**-10 + bias, wandering**0.5 * 2.0**-12 + bias)


def fp8_weight_errors(weights: Any, v: Any, dtype: str, independent: float) -> tuple[Any, Any]:
    """(largest, typical) of weights @ v where weights, [..., queries, keys], are rounded to an FP8 format under a scale
    of the kernel's own, and sums of 512 products at the most are carried on in float32: 16 times a tensor core cuts off
    up to 2^-13 of what it has by then.

    Each weight is off by half a step, with a sign of its own: `independent` such errors, times the root of the sum of
    squares. What is alike rounds alike: that part is what rounding really does to these weights, on the worst of four
    grids. Weights below the format's normal numbers lose as much as their step, or all they are.

    A kernel that leaves its sums in the tensor core is refused on long rows of values of one sign: each 32 keys cut off
    some 2^-14 of the sum, and nothing here has room for that beyond 512 keys.
    """
    digits, least = FP8_WEIGHTS[dtype]
    half = 2.0**-digits
    top = weights.amax(dim=-1, keepdim=True)
    top = top.masked_fill(top == 0, 1.0)
    small = weights < least * top
    normal, values = weights.masked_fill(small, 0.0), finite(v)
    spread = (normal.square() @ values.square()).sqrt()
    common = spread * 0
    for phase in range(PHASES):
        grid = top * 2.0 ** (phase / PHASES)
        share, exponent = (normal / grid).frexp()
        moved = (share * 2.0**digits).round().ldexp(exponent - digits) * grid - normal
        common = common.maximum((moved @ values).abs())
    lost = weights.minimum(least * half * top).masked_fill(~small, 0.0)
    size = (weights @ values).abs()
    gone, usual_gone = lost @ values.abs(), (lost @ values).abs() + 0.6 * (lost.square() @ values.square()).sqrt()
    summed = size + (weights.square() @ values.square()).sqrt()
    largest = 2.0 * common + (independent * half * spread).minimum(half * (normal @ values.abs())) + gone
    return largest + 2.0**-9 * summed, common + 0.6 * half * spread + usual_gone + 2.0**-10 * summed
