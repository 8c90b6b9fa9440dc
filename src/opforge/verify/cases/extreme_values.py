"""Whether a definition bears values that it has no case with: huge and tiny ones side by side, nothing but zeros."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from opforge.core.definition.call_form import formed
from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.operator import Case, Operator, ScalarValue
from opforge.core.definition.own_words import its_own_words
from opforge.verify.cases.range_left import leaves_range
from opforge.verify.judging.elements import noise, right_elements
from opforge.verify.oracle.expectation import Expectation, Truth

SCATTERED = "scattered"
"""What "special" has, wherever: asked of operators with a special case of their own."""
LOW, BLOCKS = "low", "blocks"
"""Rows and parts of rows that are very low; that are -inf or NaN, asked as `SCATTERED` is."""
NARROWER = {"scaled": "scaled_half", "scaled_half": "scaled_quarter"}
"""What is asked instead where float32 cannot bear a distribution: squares of 2^111 overflow, squares of 2^47 and cubes
of 2^31 do not, with room for thousands of terms."""
EXTREMES = ("zeros", "ones", "float16_range", "exponents", "scaled", *NARROWER.values(), SCATTERED, LOW, BLOCKS)
"""Distributions that every operator is asked about, where the reference in float32 stays within its own bound: squares
of 1e30
overflow in every honest kernel, and a bound is not meant to hold there."""


def withstands(operator: Operator, case: Case, dtype: str, truth: Truth) -> bool:
    """Whether a case is asked: the operator claims the whole range; or no sum leaves it (cases.range_left), and the
    reference is a right answer when it is computed in float32 (in float64 where that is the
    call's dtype), and finite where it has to be
    when every step of it is rounded to
    the call's own dtypes: an honest kernel may round a sum before it goes on."""
    import torch

    scalars = operator.scalar_values(case.scalars)
    operator = formed(operator, {**case.axes, **scalars})
    if _saturates(operator, scalars, dtype, truth):
        return False
    if operator.tolerance.whole_range:
        return True
    if dtype != "float64" and all(expectation.beyond is None for expectation in truth.expectations):
        # the definition says nothing of what may be added up there
        given_wide = [truth.inputs[spec.name] for spec in operator.inputs]
        with its_own_words(operator, "reference"):
            if leaves_range(operator, scalars, given_wide):
                return False
    computed = torch.float64 if dtype == "float64" else torch.float32
    given = [(truth.inputs[spec.name], getattr(torch, spec.dtype_for(dtype, scalars))) for spec in operator.inputs]

    def answered(narrow: list[Any]) -> Iterator[tuple[Any, Expectation]]:
        with its_own_words(operator, "reference"), torch.no_grad():
            returned = operator.reference(*narrow, **scalars)
        for value, expectation in zip(
            returned if isinstance(returned, tuple) else (returned,), truth.expectations, strict=True
        ):
            yield value.to(getattr(torch, expectation.dtype)), expectation

    for stored, expectation in answered(
        [value.to(computed) if value.dtype == torch.float64 else value for value, _ in given]
    ):
        if not bool(right_elements(stored, expectation).all()) or not (noise(stored, expectation) or 0.0) <= 1:
            return False
    # Nothing is computed in 8 bits: what is stored in them is widened first. Where some inputs have the call's dtype
    # and others float32, as a log-sum-exp beside keys, all take the call's: no tensor operation takes both.
    floating = {native for value, native in given if native.is_floating_point and native.itemsize > 1}
    call = getattr(torch, dtype)
    native_given = [
        value.to(native).float()
        if native.itemsize == 1
        else value.to(call if len(floating) > 1 and native in floating else native)
        for value, native in given
    ]
    for stored, expectation in answered(native_given):
        narrow = DTYPES[dtype].min_exponent > DTYPES["float32"].min_exponent
        between = operator.tolerance.rounded is not None and expectation.dtype.startswith("float8")
        if narrow and between and not bool(right_elements(stored, expectation).all()):
            # what libraries store between two passes lies below the least number of the call's dtype, and a scale
            # makes it large again
            return False
        wanted = expectation.expected.to(stored.dtype)
        if stored.is_floating_point() and not torch.equal(
            torch.isfinite(stored.double()), torch.isfinite(wanted.double())
        ):
            return False
    return True


def has_room(truth: Truth) -> bool:
    """Whether every element of the answer is finite and far enough from float32's end that a kernel may add up
    thousands of terms before it divides, or square on the way: honest ones differ in what they hold meanwhile.
    """
    import torch

    most = DTYPES["float32"].largest * 2.0**-16
    return all(
        expectation.beyond is None
        and bool(torch.isfinite(expectation.expected).all())
        and bool((expectation.expected.abs() <= min(most, DTYPES[expectation.dtype].largest)).all())
        for expectation in truth.expectations
        if expectation.exact is None
    )


def _saturates(operator: Operator, scalars: Mapping[str, ScalarValue], dtype: str, truth: Truth) -> bool:
    """Whether what libraries store between two passes overflows in the call's dtype on the way to an output without
    infinities, which hides it.
    """
    if operator.tolerance.rounded is None:
        return False
    wide = {spec.name: truth.inputs[spec.name] for spec in operator.inputs}
    outputs = {
        expectation.output: expectation.expected
        for expectation in truth.expectations
        if expectation.dtype.startswith("float8")
    }
    if not outputs:
        return False
    between = operator.tolerance.rounded(wide, outputs, scalars)
    return any(
        bool((value.abs() > DTYPES[dtype].largest).any()) for name, (value, _) in between.items() if name in outputs
    )
