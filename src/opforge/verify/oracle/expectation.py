"""The oracle: the operator's reference in float64, on pristine inputs, in a process that runs no kernel."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opforge.core.call_form import formed
from opforge.core.dtypes import DTYPES, DType
from opforge.core.errors import UsageError
from opforge.core.expr import evaluate
from opforge.core.operator import Case, Operator, ScalarValue, TensorSpec, Ties
from opforge.core.own_words import in_case, its_own_words
from opforge.core.rounding import finite
from opforge.core.shapes import full_shape
from opforge.verify.oracle.integer_outputs import scores_of, settled
from opforge.verify.oracle.tolerance_checks import check_returned

# arithmetic is float32: GPUs and vector units may flush its subnormals to zero
UNDERFLOW = 2.0 ** DTYPES["float32"].min_exponent
ORACLE_TOO = 2.0
"""Of a kernel in float64 the oracle is no better than the kernel: both may be off by as much."""


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What one output must be: expected values and the bound on |actual - expected|, both float64, element by element.

    beyond    where what is added up leaves the range of float32, so that an honest intermediate may be infinite or NaN
              (bool tensor, or None for nowhere)
    typical   what the root mean square of |actual - expected| may be, element by element; None where the operator does
              not say
    groups    how many elements have errors of their own
    exact     for whole numbers: what they must be, in int64, with the rule for `ties` applied; `scores` is what such
              indices choose from
    """

    output: str
    dtype: str
    expected: Any
    bound: Any
    beyond: Any = None
    typical: Any = None
    groups: float = 1.0
    exact: Any = None
    ties: Ties | None = None
    scores: Any = None


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Everything the oracle says of a case: inputs (in float64, unless they are whole numbers), and an Expectation for
    each output.
    """

    inputs: Mapping[str, Any]
    expectations: tuple[Expectation, ...]

    @functools.cached_property
    def finite_inputs(self) -> bool:
        """Whether there are inputs, in all of them an element, and no infinity or NaN: asked once for all who are
        judged by it.
        """
        import torch

        return all(tensor.numel() and bool(torch.isfinite(tensor).all()) for tensor in self.inputs.values())


def consult(operator: Operator, case: Case, dtype: str, inputs: Mapping[str, Any]) -> Truth:
    """Run the reference in float64 on `inputs` (tensors by name, in their storage dtype).

    Raises UsageError when the reference does not return what the operator declares.
    """
    import torch

    scalars = operator.scalar_values(case.scalars)
    operator = formed(operator, {**case.axes, **scalars})
    # whole numbers stay what they are: an index in float64 is no index
    wide = {
        name: tensor.detach().to(torch.float64 if tensor.is_floating_point() else tensor.dtype).clone()
        for name, tensor in inputs.items()
    }
    with torch.no_grad():
        before = {name: wide[name].clone() for name in operator.overwritten}
        with its_own_words(operator, "reference", case):
            returned = operator.reference(*(wide[spec.name] for spec in operator.inputs), **scalars)
        changed = [
            name for name, value in before.items() if not torch.equal(wide[name].nan_to_num(), value.nan_to_num())
        ]
        if changed:
            raise UsageError(
                f"The reference of {operator.name} changes {', '.join(changed)}{in_case(case)}. It returns what is to "
                "stand there afterwards, and leaves its arguments as they are. Correct op.py."
            )
        values = returned if isinstance(returned, tuple) else (returned,)
        if not all(isinstance(value, torch.Tensor) for value in values):
            given = ", ".join(type(value).__name__ for value in values)
            raise UsageError(
                f"The reference of {operator.name} returns {given}, no tensor, or tuple of tensors for several "
                f"outputs{in_case(case)}. Correct op.py."
            )
        if len(values) != len(operator.outputs):
            raise UsageError(
                f"The reference of {operator.name} returns {len(values)} values for {len(operator.outputs)} outputs. "
                "Correct op.py."
            )
        outputs = {spec.name: value for spec, value in zip(operator.outputs, values, strict=True)}
        for spec in operator.outputs:
            shape = full_shape(spec.shape, case.axes)
            if tuple(outputs[spec.name].shape) != shape:
                raise UsageError(
                    f"The reference of {operator.name} gives {spec.name} shape {tuple(outputs[spec.name].shape)}, "
                    f"declared {shape}{in_case(case)}. Correct op.py."
                )
        tolerance = operator.tolerance
        with its_own_words(operator, "tolerance", case):
            magnitudes = tolerance.magnitude(wide, outputs, scalars) if tolerance.magnitude else {}
            rounded = tolerance.rounded(wide, outputs, scalars) if tolerance.rounded else {}
            errors = tolerance.errors(wide, outputs, scalars, dtype) if tolerance.errors else {}
        check_returned(operator, "magnitude", magnitudes, outputs, 1)
        check_returned(operator, "rounded", rounded, outputs, 2)
        check_returned(operator, "errors", errors, outputs, 0)
        length = reduction_length(operator, case, dtype)
        # a whole number beyond 64 bits is none to torch
        factor, roundings = float(tolerance.factor), float(tolerance.roundings)
        shared = max(1.0, float(evaluate(tolerance.shared, {**case.axes, **scalars, "dtype": dtype})))
        expectations: list[Expectation] = []
        for spec in operator.outputs:
            if DTYPES[spec.dtype_for(dtype, scalars)].whole:
                expectations.append(
                    _exact(operator, spec, spec.dtype_for(dtype, scalars), outputs[spec.name], wide, scalars)
                )
                continue
            expected = outputs[spec.name].to(torch.float64)
            magnitude = magnitudes.get(spec.name, expected).abs().to(torch.float64)
            stored = spec.dtype_for(dtype, scalars)
            typical, reached = None, expected
            # what the kernel computes in; hardware may flush its subnormals to zero
            arithmetic = DTYPES["float64" if stored == dtype == "float64" else "float32"]
            underflow = 2.0**arithmetic.min_exponent
            if spec.name in errors:
                found = errors[spec.name]
                error, typical = (
                    finite(part).expand(expected.shape) * _finer(arithmetic) for part in (found.largest, found.typical)
                )
                magnitude = expected.abs() if found.reached is None else found.reached.expand(expected.shape)
            else:
                error = factor * DTYPES["float32"].epsilon * _finer(arithmetic) * length**0.5 * magnitude
            if spec.name in rounded:
                value, weight = rounded[spec.name]
                once = half_ulp(value, stored) * weight.abs()
                error = error + once
                typical = None if typical is None else (typical.square() + once.square()).sqrt()
                # what is stored between two passes may overflow there
                overflows = (value.abs() >= DTYPES[stored].largest).double()
                magnitude = magnitude.maximum(2 * arithmetic.largest * overflows)
            if spec.name in rounded or spec.name in errors:
                # what is stored at last may have been moved past a power of two, from where on a rounding may be twice
                # as large
                reached = expected.abs() + error
            bound = error + roundings * half_ulp(reached, stored) + underflow
            if typical is not None:
                # a rounding counts whole: where results lie on a coarse grid all of them may be ties
                typical = (typical.square() + (roundings * half_ulp(reached, stored)).square()).sqrt() + underflow
            beyond = torch.isfinite(magnitude) & (magnitude > arithmetic.largest)
            expectations.append(
                Expectation(
                    output=spec.name,
                    dtype=stored,
                    expected=expected,
                    bound=bound,
                    beyond=beyond if bool(beyond.any()) else None,
                    typical=typical,
                    groups=max(1.0, expected.numel() / shared),
                )
            )
    return Truth(inputs=wide, expectations=tuple(expectations))


def _finer(arithmetic: DType) -> float:
    """What becomes of an error that was worked out for float32, in arithmetic of another format."""
    if arithmetic.name == "float32":
        return 1.0
    return ORACLE_TOO * arithmetic.epsilon / DTYPES["float32"].epsilon


def _exact(
    operator: Operator,
    spec: TensorSpec,
    stored: str,
    values: Any,
    inputs: Mapping[str, Any],
    scalars: Mapping[str, ScalarValue],
) -> Expectation:
    """What an output of whole numbers must be: no bound, but a rule where several are equally right."""
    import torch

    exact, scores = values.to(torch.int64), None
    if spec.ties is not None:
        with its_own_words(operator, "rule for ties"):
            scores = scores_of(spec.ties, inputs, scalars)
            exact = settled(exact, spec.ties, scores)
    expected = exact.to(torch.float64)
    return Expectation(
        output=spec.name,
        dtype=stored,
        expected=expected,
        bound=torch.zeros_like(expected),
        exact=exact,
        ties=spec.ties,
        scores=scores,
    )


def reduction_length(operator: Operator, case: Case, dtype: str) -> float:
    """How many terms are accumulated for one element of a case, by the operator's own tolerance; at least 1."""
    names = {**case.axes, **operator.scalar_values(case.scalars), "dtype": dtype}
    return max(1.0, float(evaluate(operator.tolerance.length, names)))


def half_ulp(values: Any, dtype: str) -> Any:
    """Half the distance between neighbours of `dtype` at each float64 value: the most that one rounding may move it."""
    import torch

    form = DTYPES[dtype]
    _, exponent = torch.frexp(values)
    exponent = torch.clamp(exponent.to(torch.float64) - 1, min=form.min_exponent)
    return torch.where(torch.isfinite(values), torch.exp2(exponent - form.significand), torch.zeros_like(values))
