"""Two figures where a tensor is held in 8 bits: what the kernel adds, and what the format took before the kernel ran.

Kernel error is judged against the float64 reference on the same quantised inputs, so its bound is as tight as
elsewhere. Quantisation error is the reference on the quantised inputs against the reference on the unquantised ones; no
kernel can mend it, and a recipe decides how much of it is borne. One figure for both is why published tolerances differ
by a factor of 20.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.operator import Case, Operator
from opforge.core.evidence.verdict import Metrics
from opforge.core.language.errors import UsageError
from opforge.verify.judging.elements import compare
from opforge.verify.oracle.expectation import Expectation, consult


@dataclass(frozen=True, kw_only=True)
class TwoErrors:
    """Both figures for one output.

    kernel            metrics of the kernel against the reference on the same quantised inputs
    kernel_agrees     whether every element lies within the operator's bound
    quantisation      metrics of the reference on quantised inputs against the reference on the original ones
    clip_ratio        of each quantised input, the share of elements beyond the format's largest value
    """

    output: str
    kernel: Metrics
    kernel_agrees: bool
    quantisation: Metrics
    clip_ratio: Mapping[str, float]


def clip_ratio(values: Any, dtype: str, scale: float | Any = 1.0) -> float:
    """The share of `values / scale` that lies beyond the largest finite value of `dtype` and is clipped; NaN is not
    counted.

    values   a tensor of any shape, before quantisation
    scale    what the values are divided by before they are stored: a number, or a tensor that broadcasts
    """
    scaled = (values.double() / scale).abs()
    return float((scaled > DTYPES[dtype].largest).double().mean()) if scaled.numel() else 0.0


def sqnr_db(exact: Any, quantised: Any) -> float:
    """Signal to quantisation noise, 20 log10(|x| / |x - q|), in dB; infinite when they are equal."""
    signal, noise = float(exact.double().norm()), float((exact.double() - quantised.double()).norm())
    return 20 * math.log10(signal / noise) if signal and noise else math.inf if not noise else -math.inf


def two_errors(
    operator: Operator,
    case: Case,
    dtype: str,
    original: Mapping[str, Any],
    quantised: Mapping[str, Any],
    outputs: Mapping[str, Any],
) -> tuple[TwoErrors, ...]:
    """Kernel error and quantisation error of each output.

    original    the inputs before quantisation, by name, in any wider dtype
    quantised   what the kernel was given, by name: the same shapes, scales already applied (dequantised values)
    outputs     what the kernel returned, by name, in the operator's output dtype

    Raises UsageError when an input is missing or its shape differs.
    """
    for name, tensor in quantised.items():
        if name not in original or tuple(original[name].shape) != tuple(tensor.shape):
            raise UsageError(
                f"two_errors needs {name!r} before and after quantisation in one shape {tuple(tensor.shape)}. Pass "
                f"the tensor that was quantised as original[{name!r}]."
            )
    given = consult(operator, case, dtype, quantised)
    exact = {expectation.output: expectation for expectation in consult(operator, case, dtype, original).expectations}
    stored = {spec.name: spec.dtype_for(dtype, operator.scalar_values(case.scalars)) for spec in operator.inputs}
    narrow = {name: kind for name, kind in stored.items() if DTYPES[kind].itemsize == 1}
    clips = {name: clip_ratio(original[name], kind) for name, kind in narrow.items() if name in original}
    errors = []
    for expectation in given.expectations:
        kernel = compare(outputs[expectation.output], expectation)
        apart = compare(expectation.expected, _wide(exact[expectation.output]))
        errors.append(
            TwoErrors(
                output=expectation.output,
                kernel=kernel.metrics,
                kernel_agrees=kernel.agrees,
                quantisation=apart.metrics,
                clip_ratio=clips,
            )
        )
    return tuple(errors)


def _wide(expectation: Expectation) -> Expectation:
    """The same in float64: quantisation error is no matter of the output's own rounding."""
    return Expectation(
        output=expectation.output, dtype="float64", expected=expectation.expected, bound=expectation.bound
    )
