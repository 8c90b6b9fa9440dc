"""The oracle: the operator's reference in float64, on pristine inputs, in a process that runs no kernel."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from opforge.core.definition.call_form import formed
from opforge.core.definition.dtypes import DTYPES, DType
from opforge.core.definition.operator import Case, Operator, ScalarValue, TensorSpec, Ties
from opforge.core.definition.own_words import in_case, its_own_words
from opforge.core.definition.rounding_errors import Errors
from opforge.core.definition.shapes import full_shape
from opforge.core.language.errors import UsageError
from opforge.core.language.expr import evaluate
from opforge.definitions.bounds.sums import finite
from opforge.verify.oracle import asked_before
from opforge.verify.oracle.aside import ASIDE, Aside, Waiting, empty_on_host, waits, widened
from opforge.verify.oracle.integer_outputs import scores_of, settled
from opforge.verify.oracle.rounded_outputs import Roundings, rounds
from opforge.verify.oracle.tolerance_checks import check_returned

# arithmetic is float32: GPUs and vector units may flush its subnormals to zero
UNDERFLOW = 2.0 ** DTYPES["float32"].min_exponent
TOGETHER = 2**26
"""Elements of an output whose bounds are worked out at once: 512 MiB in float64, and ten times that on the way."""
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
    roundings: Roundings | None = None
    rounded_to: str | None = None


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Everything the oracle says of a case: inputs (in float64, unless they are whole numbers), and an Expectation for
    each output. Of large ones both wait in the host's memory (oracle.aside).
    """

    inputs: Mapping[str, Any]
    expectations: Sequence[Expectation]

    @property
    def waits(self) -> bool:
        """Whether the expectations do."""
        return isinstance(self.expectations, Waiting)

    @functools.cached_property
    def finite_inputs(self) -> bool:
        """Whether there are inputs, in all of them an element, and no infinity or NaN: asked once for all who are
        judged by it.
        """
        import torch

        return all(tensor.numel() and bool(torch.isfinite(tensor).all()) for tensor in self.inputs.values())


def consult(operator: Operator, case: Case, dtype: str, inputs: Mapping[str, Any]) -> Truth:
    """Run the reference in float64 on `inputs` (tensors by name, in their storage dtype).

    Raises UsageError when the reference does not return what the operator declares, or the bound is another one than
    when it was asked before.
    """
    truth = _consult(operator, case, dtype, inputs)
    if asked_before.kept(operator, case, dtype, inputs, truth.expectations) and (ask := asked_before.due(operator)):
        again = _consult(ask.operator, ask.case, ask.dtype, ask.inputs)
        asked_before.compare(ask, again.expectations)
    return truth


def _consult(operator: Operator, case: Case, dtype: str, inputs: Mapping[str, Any]) -> Truth:
    import torch

    scalars = operator.scalar_values(case.scalars)
    operator = formed(operator, {**case.axes, **scalars})
    wide = {name: widened(tensor).clone() for name, tensor in inputs.items()}
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
        # a subclass would decide itself what a comparison with it gives
        if not all(type(value) in (torch.Tensor, torch.nn.Parameter) for value in values):
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
                    f"declared {shape}{in_case(case)}. Correct op.py; where its size depends on values, declare the "
                    "most there can be (docs/kernels.md, Outputs whose size depends on values)."
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
        factor, stores = float(tolerance.factor), float(tolerance.roundings)
        shared = max(1.0, float(evaluate(tolerance.shared, {**case.axes, **scalars, "dtype": dtype})))
        place = values[0].device
        aside = waits(place, sum(8 * outputs[name].numel() * (3 if name in errors else 2) for name in outputs))
        bytes_there = sum(tensor.nbytes for tensor in wide.values() if tensor.device.type != "cpu")
        kept: Mapping[str, Any] = Aside(inputs) if bytes_there >= ASIDE else wide
        whole = [spec.name for spec in operator.outputs if DTYPES[spec.dtype_for(dtype, scalars)].whole]
        finer = _finer(DTYPES["float64" if dtype == "float64" else "float32"])
        relative = factor * DTYPES["float32"].epsilon * length**0.5 * finer
        roundings = Roundings(
            reference=operator.reference,
            arguments=lambda: [kept[spec.name] for spec in operator.inputs],
            scalars=scalars,
            outputs=tuple(spec.name for spec in operator.outputs),
            relative=max(relative, DTYPES["float32"].epsilon * finer),
            sizes={name: size for name, size in magnitudes.items() if name in whole},
            errors={name: finite(error.largest) * finer for name, error in errors.items() if name in whole},
        )
        expectations: list[Expectation] = []
        for spec in operator.outputs:
            if DTYPES[spec.dtype_for(dtype, scalars)].whole:
                expectations.append(
                    _exact(operator, spec, spec.dtype_for(dtype, scalars), outputs[spec.name], wide, scalars)
                )
                continue
            expected = outputs[spec.name].to(torch.float64)
            stored = spec.dtype_for(dtype, scalars)
            rule = _Rule(
                stored=stored,
                arithmetic=DTYPES["float64" if stored == dtype == "float64" else "float32"],
                relative=factor * DTYPES["float32"].epsilon * length**0.5,
                roundings=stores,
            )
            bound, typical, beyond = _bounded(
                rule, expected, magnitudes.get(spec.name), errors.get(spec.name), rounded.get(spec.name), aside
            )
            expectations.append(
                Expectation(
                    output=spec.name,
                    dtype=stored,
                    expected=expected,
                    bound=bound,
                    beyond=beyond,
                    typical=typical,
                    groups=max(1.0, expected.numel() / shared),
                )
            )
    expectations = [
        replace(one, roundings=roundings, rounded_to=spec.rounded_to) if rounds(spec.rounded_to) else one
        for one, spec in zip(expectations, operator.outputs, strict=True)
    ]
    return Truth(
        inputs=kept,
        expectations=Waiting(expectations, place) if aside else tuple(expectations),
    )


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """What bounds an output: the dtype it is stored in, what the kernel computes in, its error relative to the
    magnitude, and how many times it is rounded to the stored dtype.
    """

    stored: str
    arithmetic: DType
    relative: float
    roundings: float


def _bounded(
    rule: _Rule,
    expected: Any,
    magnitude: Any,
    errors: Errors | None,
    rounded: tuple[Any, Any] | None,
    aside: bool = False,
) -> tuple[Any, Any, Any]:
    """An Expectation's bound, typical and beyond, element by element; of many elements a part at a time, since what is
    worked out on the way takes ten times their memory. `aside`: they lie in the host's memory.
    """
    import torch

    shape = expected.shape
    given = (magnitude, *((None,) * 3 if errors is None else (errors.largest, errors.typical, errors.reached)))
    whole = [None if one is None else one.expand(shape) for one in (*given, *(rounded or (None, None)))]

    def empty(dtype: Any) -> Any:
        return empty_on_host(shape, dtype) if aside else torch.empty_like(expected, dtype=dtype)

    bound, beyond = empty(expected.dtype), empty(torch.bool)
    typical = None if errors is None else empty(expected.dtype)
    for part in parts_of(shape, TOGETHER):
        found = _bounded_part(rule, expected[part], *(None if one is None else one[part] for one in whole))
        bound[part], beyond[part] = found[0], found[2]
        if typical is not None:
            typical[part] = found[1]
    return bound, typical, beyond if bool(beyond.any()) else None


def _bounded_part(
    rule: _Rule, expected: Any, magnitude: Any, largest: Any, typical: Any, reached: Any, value: Any, weight: Any
) -> tuple[Any, Any, Any]:
    """Of elements that are there at once: bound, typical (None where nobody says what errors are) and beyond."""
    import torch

    magnitude = (expected if magnitude is None else magnitude).abs().to(torch.float64)
    arithmetic, stored, ending = rule.arithmetic, rule.stored, expected
    # hardware may flush its subnormals to zero
    underflow = 2.0**arithmetic.min_exponent
    if largest is not None:
        error, typical = (finite(one) * _finer(arithmetic) for one in (largest, typical))
        magnitude = expected.abs() if reached is None else reached
    else:
        error = rule.relative * _finer(arithmetic) * magnitude
    if value is not None:
        once = half_ulp(value, stored) * weight.abs()
        error = error + once
        typical = None if typical is None else (typical.square() + once.square()).sqrt()
        # what is stored between two passes may overflow there
        overflows = (value.abs() >= DTYPES[stored].largest).double()
        magnitude = magnitude.maximum(2 * arithmetic.largest * overflows)
    if value is not None or largest is not None:
        # what is stored at last may have been moved past a power of two, from where on a rounding may be twice as large
        ending = expected.abs() + error
    last = rule.roundings * half_ulp(ending, stored)
    bound = error + last + underflow
    if typical is not None:
        # a rounding counts whole: where results lie on a coarse grid all of them may be ties
        typical = (typical.square() + last.square()).sqrt() + underflow
    return bound, typical, torch.isfinite(magnitude) & (magnitude > arithmetic.largest)


def parts_of(shape: Sequence[int], most: int) -> Iterator[tuple[int | slice, ...]]:
    """Indices that take every element of a tensor once, in row-major order, `most` of them at a time at most."""
    if math.prod(shape) <= most:
        yield ()
        return
    inner = [math.prod(shape[place + 1 :]) for place in range(len(shape))]
    along = next(place for place, size in enumerate(inner) if size <= most)
    step = most // inner[along]
    for outer in itertools.product(*map(range, shape[:along])):
        for first in range(0, shape[along], step):
            yield (*outer, slice(first, first + step))


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
