"""The activations of linear layers, for references and bounds: on whatever has the methods of a tensor, so no library
is imported.
"""

from __future__ import annotations

import math
from typing import Any

from opforge.core.definition.rounding_errors import Errors
from opforge.definitions.bounds.sums import few_ulps, finite, product_errors

ACTIVATIONS = ("none", "relu", "gelu", "silu")


def activated(z: Any, activation: str) -> Any:
    """The activation of z, element by element: relu, gelu by erf, silu as z * sigmoid(z), or z itself."""
    if activation == "relu":
        return z.clamp(min=0)
    if activation == "gelu":
        return 0.5 * z * (1 + (z / math.sqrt(2)).erf())
    if activation == "silu":
        return z * z.sigmoid()
    return z


def slope(z: Any, activation: str) -> Any:
    """How much an error of z, up to a bfloat16 rounding, is stretched: the steepest derivative near it."""
    if activation == "none":
        return z.new_ones(()).expand_as(z)
    near = [z, z * (1 + 1 / 128), z * (1 - 1 / 128)]
    if activation == "relu":
        return (near[0] > 0).to(z)
    if activation == "gelu":
        slopes = [0.5 * (1 + (v / math.sqrt(2)).erf()) + v * (-v * v / 2).exp() / math.sqrt(2 * math.pi) for v in near]
    else:
        slopes = [v.sigmoid() * (1 + v * (1 - v.sigmoid())) for v in near]
    return slopes[0].abs().maximum(slopes[1].abs()).maximum(slopes[2].abs())


def stored_below_normal(activation: str, dtype: str) -> Errors:
    """What `stored_between` misses: a result of the activation below float16's normal numbers has steps of 2^-24,
    however small it is beside z."""
    lost = 2.0**-25 if dtype == "float16" and activation != "none" else 0.0
    return Errors(lost, lost)


def stored_between(z: Any, activation: str) -> Any:
    """How often half a step at z bounds the errors of a library that stores z before the activation, and the activation
    before what comes next: the first is stretched by the slope; the second has half a step at activated(z), which is no
    larger than z.
    """
    if activation == "none":
        return slope(z, activation)
    share = (2 * activated(z, activation) / z).abs().nan_to_num(nan=1.0).clamp(max=1.0)
    return slope(z, activation) + share


def linear_errors(x: Any, w: Any, bias: Any, activation: str, dtype: str) -> Errors:
    """What activation(x @ w^T + bias) of factors of `dtype` may be off: the products' sum, which may begin with the
    bias, stretched by the activation; exp and
    erf err by a few ulp of the result."""
    sums = product_errors(finite(x), finite(w).transpose(-1, -2), cut=dtype != "float32", start=finite(bias))
    z = x @ w.transpose(-1, -2) + bias
    result = finite(activated(z, activation)).abs()
    steep = slope(z, activation)
    if activation == "relu":
        # what is below 0 by less than its error may come out above
        steep = (z > -sums.largest).to(z)
    # a sum that is not finite has no error, and no slope
    errors = sums.times(finite(steep)) + few_ulps(result, 6.0, 3.0)
    if activation == "gelu":
        # z/2 and z/2 * erf cancel for negative z: what remains carries the error of both
        errors = errors + few_ulps(finite(z).abs(), 6.0, 3.0)
    if activation == "silu":
        # below z = -87.3 the sigmoid is smaller than the least normal number, and may be 0: then 1e-36 is lost
        errors = errors + Errors(1.5e-36, 1.5e-36)
    return errors
