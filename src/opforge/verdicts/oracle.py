"""The oracle: the operator's reference in float64, on pristine inputs, in a process that runs no kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from opforge.core.dtypes import DTYPES
from opforge.core.errors import OpforgeError, UsageError
from opforge.core.expr import evaluate
from opforge.core.operator import Case, Operator
from opforge.core.shapes import full_shape

# arithmetic is float32: GPUs and vector units may flush its subnormals to zero
UNDERFLOW = 2.0 ** DTYPES["float32"].min_exponent


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What one output must be: expected values and the bound on |actual - expected|, both float64, element by element.

    beyond   where what is added up leaves the range of float32, so that an honest intermediate may be infinite or NaN (bool tensor, or None for nowhere)
    """

    output: str
    dtype: str
    expected: Any
    bound: Any
    beyond: Any = None


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Everything the oracle says of a case: inputs (in float64, unless they are whole numbers), and an Expectation for each output."""

    inputs: Mapping[str, Any]
    expectations: tuple[Expectation, ...]


def consult(operator: Operator, case: Case, dtype: str, inputs: Mapping[str, Any]) -> Truth:
    """Run the reference in float64 on `inputs` (tensors by name, in their storage dtype).

    Raises UsageError when the reference does not return what the operator declares.
    """
    import torch

    scalars = operator.scalar_values(case.scalars)
    # whole numbers stay what they are: an index in float64 is no index
    wide = {name: tensor.detach().to(torch.float64 if tensor.is_floating_point() else tensor.dtype).clone() for name, tensor in inputs.items()}
    with torch.no_grad():
        with its_own_words(operator, "reference"):
            returned = operator.reference(*(wide[spec.name] for spec in operator.inputs), **scalars)
        values = returned if isinstance(returned, tuple) else (returned,)
        if not all(isinstance(value, torch.Tensor) for value in values):
            given = ", ".join(type(value).__name__ for value in values)
            raise UsageError(f"The reference of {operator.name} returns {given}, no tensor, or tuple of tensors for several outputs. Correct op.py.")
        if len(values) != len(operator.outputs):
            raise UsageError(f"The reference of {operator.name} returns {len(values)} values for {len(operator.outputs)} outputs. Correct op.py.")
        outputs = {spec.name: value for spec, value in zip(operator.outputs, values, strict=True)}
        for spec in operator.outputs:
            shape = full_shape(spec.shape, case.axes)
            if tuple(outputs[spec.name].shape) != shape:
                raise UsageError(f"The reference of {operator.name} gives {spec.name} shape {tuple(outputs[spec.name].shape)}, declared {shape}. Correct op.py.")
        tolerance = operator.tolerance
        with its_own_words(operator, "tolerance"):
            magnitudes = tolerance.magnitude(wide, outputs, scalars) if tolerance.magnitude else {}
            rounded = tolerance.rounded(wide, outputs, scalars) if tolerance.rounded else {}
        length = reduction_length(operator, case, dtype)
        expectations: list[Expectation] = []
        for spec in operator.outputs:
            expected = outputs[spec.name].to(torch.float64)
            magnitude = magnitudes.get(spec.name, expected).abs().to(torch.float64)
            arithmetic = tolerance.factor * DTYPES["float32"].epsilon * length**0.5
            stored = spec.dtype_for(dtype, scalars)
            error, reached = arithmetic * magnitude, expected
            if spec.name in rounded:
                value, weight = rounded[spec.name]
                error = error + half_ulp(value, stored) * weight.abs()
                # what is stored at last may have been moved past a power of two, from where on a rounding may be twice as large
                reached = expected.abs() + error
            bound = error + tolerance.roundings * half_ulp(reached, stored) + UNDERFLOW
            beyond = torch.isfinite(magnitude) & (magnitude > DTYPES["float32"].largest)
            expectations.append(Expectation(output=spec.name, dtype=stored, expected=expected, bound=bound, beyond=beyond if bool(beyond.any()) else None))
    return Truth(inputs=wide, expectations=tuple(expectations))


@contextmanager
def its_own_words(operator: Operator, part: str) -> Iterator[None]:
    """What a function of a definition raises becomes a UsageError that says whose it is. Want of memory, a RuntimeError in torch, stays what it is."""
    try:
        yield
    except OpforgeError:
        raise
    except Exception as error:  # op.py is a guest's code
        if isinstance(error, MemoryError) or "memory" in str(error):
            raise
        raise UsageError(f"The {part} of {operator.name} raises {type(error).__name__}: {error}. Correct op.py.") from error


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
