"""How float32 factors may be rounded before they are multiplied: the choices, and what each may cost an exact
product.
"""

from __future__ import annotations

from typing import Any

from opforge.core.definition.operator import Constraint, Scalar
from opforge.core.definition.rounding_errors import Errors
from opforge.definitions.bounds.sums import BEYOND, finite, product_errors

PRECISIONS = ("ieee", "tf32")

PRECISION = Scalar(
    name="precision",
    default="ieee",
    choices=PRECISIONS,
    about="of float32 factors: ieee keeps all 24 bits, tf32 allows 11 (tensor cores); sums are float32 either way",
)
FACTORS_HAVE_FLOAT32 = Constraint(
    name="tf32_is_for_float32",
    expression="precision == 'ieee' or dtype == 'float32'",
    about="float16 and bfloat16 factors are multiplied exactly, and torch.autocast makes such factors of float32 "
    "ones: leave precision out",
)
LEAST_BEYOND_TF32 = (2 - 2.0**-11) * 2.0**127
"""From here on a float32 is rounded to infinity where 11 of its bits are kept: cuBLAS and `cvt.rna.tf32` do so (seen on
an NVIDIA H200), and truncation does not."""
LEAST_PART = 2.0**-133
"""The smallest bfloat16 above 0. A float32 factor that tensor cores take as the sum of three bfloat16 (Henry, Tang and
Heinecke, 2019) keeps no digit below it; one of 2^-109 and more has none there."""
COMPUTE_DTYPE = "'tfloat32' if precision == 'tf32' else dtype"
"""For Operator.compute_dtype."""


def lost_in_factors(a: Any, b: Any, precision: str) -> Any:
    """What a @ b may lose, element by element, because both factors were rounded or cut off to `precision`; a and b are
    finite float64.

    TF32 keeps 10 bits behind the point. Cut off, a factor loses less than 2^-10 of itself, always towards zero: the
    part that all products share scales the sum, by less than 2^-9. What remains is different from product to product,
    with a standard deviation of at most 0.31 * 2^-10 of each for digits that have nothing to do with each other: 2^-9
    of the root of the sum of squares is 6.4 of them. Factors that are rounded to nearest lose half as much. (bfloat16,
    eight times as coarse, loses 2.4 * 2^-10 of that root at one element in three.)
    """
    product = a @ b
    if precision == "ieee":
        return product.new_zeros(()).expand_as(product)
    return 2.0**-9 * (product.abs() + ((a * a) @ (b * b)).sqrt())


def parts_errors(a: Any, b: Any) -> Errors:
    """Of a @ b (finite float64) where each factor is split into parts that are bfloat16: exact, but for digits below
    `LEAST_PART`: a factor below 2^-109 is rounded to a multiple of it."""
    small = [(one != 0) & (one.abs() < 2.0**24 * LEAST_PART) for one in (a, b)]
    if not any(bool(one.any()) for one in small):
        # as nearly everywhere: two products less
        return Errors(0.0, 0.0)
    lost = small[0].to(a.dtype) @ b.abs() + a.abs() @ small[1].to(b.dtype)
    return Errors(LEAST_PART * lost, LEAST_PART / 2 * lost)


def matrix_errors(a: Any, b: Any, precision: str, dtype: str, start: Any = 0.0) -> Errors:
    """What a @ b of factors of `dtype` may be off: where a tensor core adds up, its adders cut off; and what
    `precision` takes from the factors.

    start   what the sums may begin with, such as a bias
    """
    left, right = finite(a), finite(b)
    errors = product_errors(left, right, cut=dtype != "float32" or precision != "ieee", start=start)
    if precision == "ieee":
        return errors + parts_errors(left, right) if dtype == "float32" else errors
    # of cut off factors the mean of the shared part is 0.72 of its most, and the standard deviation of the other 0.22;
    # both with room
    product, root = left @ right, (left.square() @ right.square()).sqrt()
    beyond = (left.abs() >= LEAST_BEYOND_TF32).any(-1, keepdim=True) | (right.abs() >= LEAST_BEYOND_TF32).any(
        -2, keepdim=True
    )
    reached = product.abs().maximum(BEYOND * beyond.to(product.dtype))
    return errors + Errors(
        lost_in_factors(left, right, precision), 2.0**-9 * (0.8 * product.abs() + 0.4 * root), reached
    )
