"""Operator: what is computed, told once, for every backend.

An operator's folder holds `op.py`, which builds one `Operator` from these nouns and imports nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from opforge.core.definition.cost import Cost as Cost
from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.likeness import Like as Like, Lowered as Lowered
from opforge.core.definition.rounding_errors import Errors
from opforge.core.definition.shapes import Axes, AxisValue, axis_names, bind_axes
from opforge.core.definition.tensors import (
    DOMAINS as DOMAINS,
    TIES,
    ScalarValue as ScalarValue,
    TensorSpec as TensorSpec,
    Ties as Ties,
    check_gradients,
    check_lists,
    check_offsets,
    check_optional,
    check_overwritten,
    shapes_of,
)
from opforge.core.language.errors import UsageError
from opforge.core.language.expr import evaluate, worth
from opforge.core.language.fields import check_fields, wrong_field


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """One parameter that is not a tensor, with its default and, where it is a choice, the choices."""

    name: str
    default: ScalarValue
    choices: tuple[ScalarValue, ...] = ()
    about: str = ""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """A named condition over axes, dtype and scalars that every call must satisfy."""

    name: str
    expression: str
    about: str

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class Law:
    """A property that holds whatever the implementation. `holds(inputs, outputs, scalars)` gets float64 tensors by
    name and returns None, or one sentence saying what is violated. Asked only on finite inputs."""

    name: str
    about: str
    holds: Callable[[Mapping[str, Any], Mapping[str, Any], Mapping[str, ScalarValue]], str | None]

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far a right answer may be from the float64 oracle, element by element:

    `factor * eps(float32) * sqrt(length) * magnitude  +  roundings * (half an ulp of the output dtype at the result)`

    and the smallest normal float32, because hardware may flush what is smaller.

    length      expression over the axes: how many terms are accumulated. sqrt, because rounding errors have random
                signs (Higham and Mary, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput.
                41, 2019)
    magnitude   `magnitude(inputs, outputs, scalars) -> {output: tensor}`: the size of what was added up to give each
                element, in float64. None means |result|: right for operators that only scale
    roundings   how often an intermediate or the result is rounded to the output dtype; 1 is the final store alone
    rounded     `rounded(inputs, outputs, scalars) -> {output: (value, weight)}`: an intermediate that may be rounded to
                the output dtype, and what multiplies it afterwards: adds half an ulp at `value`, times |weight|.
                Sharper than another of the roundings, and right where the intermediate is subnormal and the result is
                not. The last rounding counts at the result that this may have moved: past a power of two its steps are
                twice as large
    errors      `errors(inputs, outputs, scalars, dtype) -> {output: core.definition.rounding_errors.Errors}`: what the
                arithmetic may do, element by element, in the unit of the result; takes the place of the first term
                above. It says besides what the root mean square of all errors may be: many small ones show what no
                single one does
    rounds_factors   whether factors of either sign are made on the way and rounded to the dtype (attention's
                gradients): sums of a few more digits than that can't be told from right ones
    whole_range   whether kernels answer for every value whose result float32 holds, also where squares or sums on the
                way leave its range. Without it hidden cases of such values are left out, and a verdict says so
    shared      expression over the axes: how many elements share one error ("cols": a row's statistic is in all of
                them): they are one element to that root mean square
    """

    factor: float = 6.0
    length: str = "1"
    magnitude: Callable[[Mapping[str, Any], Mapping[str, Any], Mapping[str, ScalarValue]], Mapping[str, Any]] | None = (
        None
    )
    roundings: float = 1.0
    rounded: (
        Callable[[Mapping[str, Any], Mapping[str, Any], Mapping[str, ScalarValue]], Mapping[str, tuple[Any, Any]]]
        | None
    ) = None
    errors: (
        Callable[[Mapping[str, Any], Mapping[str, Any], Mapping[str, ScalarValue], str], Mapping[str, Errors]] | None
    ) = None
    shared: str = "1"
    rounds_factors: bool = False
    whole_range: bool = False
    about: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("factor", "roundings"):
            if not 0 <= getattr(self, name) < math.inf:
                raise wrong_field(self, name, "must be finite and not below 0")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One situation to verify: axes, distribution of the values, memory layout, scalars, and why it exists.

    `dtype` None means every dtype of the operator. `seed` None means a fresh one each time; a recorded seed replays the
    case exactly. `pattern` is 0, or 1 where memory that no tensor owns, and outputs before they are written, hold the
    other of the patterns that follow from the seed; 2 is one run with each, whose bits must agree.
    """

    name: str
    axes: Mapping[str, AxisValue]
    why: str
    distribution: str = "normal"
    layout: str = "contiguous"
    dtype: str | None = None
    scalars: Mapping[str, ScalarValue] = field(default_factory=dict)
    seed: int | None = None
    pattern: int = 0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A case somebody really runs: which layer of which published model. `scale` is "laptop" or "gpu".

    layout   how the inputs lie in memory, as a Case says it; several words are one for each input ("contiguous
             transposed")
    """

    name: str
    axes: Mapping[str, AxisValue]
    source: str
    scale: str = "gpu"
    scalars: Mapping[str, ScalarValue] = field(default_factory=dict)
    layout: str = "contiguous"

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class Operator:
    """An operator, defined once. See the fields' own nouns; `implementations` lists file stems in order of preference.

    unit   which arithmetic units its FLOPs can be given to: "matrix" (products of matrices: matmul, convolution,
           attention) or "vector" (everything else). The roofline takes its compute ceiling from it
    derived    axes whose size follows from the others and the parameters: name -> expression ("cdiv(k, 128)"). Cases
               and workloads need not give them, and a call whose tensors have another size there is refused
    bytes_saved   for a fused operator: an expression for the bytes that the passes it does without would move
               ("2 * prod(rows) * n * itemsize": an intermediate written and read again)
    compute_dtype   an expression over dtype and parameters: the format in which factors are multiplied, where that is
               not the dtype ("tfloat32"). Rates, and times of one format, say nothing of another
    gradient   the operator that computes the gradients of this one. Names say how the two join (see
               core.definition.gradient): its inputs are named after inputs and outputs of this one, or "d" + an output;
               its outputs are "d" + an input
    further_gradients   operators for the gradients of further inputs, joined likewise; each is called only where one
               of those is wanted, and only in calls that have all it needs
    carried    of a gradient operator: optional inputs of the forward operator that it is not told of, since outputs
               that it takes hold what they did (a log-sum-exp has the mask in it)
    follows    `follows(inputs, scalars) -> {input: tensor}`: inputs that another operator has made of the others, in
               float64 (attention's result, for its gradients); cases have these values there, rounded
    like       the functions of PyTorch's that it stands for, and how a call of one becomes a call of it: with them
               opforge.ops.functional has it under that function's name
    grid       its shape classes, as workloads of either scale: the few shapes whose times tell where each
               implementation is good. Not given, they follow from the names of its axes (core.definition.shape_classes)
    used       where models call it ("language models"): such operators are qualified first
    presence   not given: for each optional input a parameter `has_NAME`
    list_axes  not given: the axes with a size for each tensor of a list; `listed` has those of a call
    written_as   not given: of an operator in the form of a call, the one that the definition has (see
    core.definition.call_form)
    """

    name: str
    about: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    reference: Callable[..., Any]
    flops: str
    scalars: tuple[Scalar, ...] = ()
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")
    constraints: tuple[Constraint, ...] = ()
    derived: Mapping[str, str] = field(default_factory=dict)
    bytes_read: str | None = None
    bytes_written: str | None = None
    bytes_saved: str | None = None
    tolerance: Tolerance = Tolerance()
    laws: tuple[Law, ...] = ()
    cases: tuple[Case, ...] = ()
    workloads: tuple[Workload, ...] = ()
    implementations: tuple[str, ...] = ()
    differentiable: tuple[str, ...] | None = None
    source: str = ""
    folder: Path | None = None
    unit: str = "vector"
    compute_dtype: str | None = None
    gradient: str | None = None
    further_gradients: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()
    follows: Callable[[Mapping[str, Any], Mapping[str, ScalarValue]], Mapping[str, Any]] | None = None
    like: tuple[Like, ...] = ()
    grid: tuple[Workload, ...] = ()
    used: tuple[str, ...] = ()
    presence: tuple[Scalar, ...] = field(init=False, default=(), repr=False)
    list_axes: tuple[str, ...] = field(init=False, default=(), repr=False)
    listed: Mapping[str, tuple[int, ...]] = field(init=False, default_factory=dict, repr=False)
    written_as: Operator | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.unit not in ("vector", "matrix"):
            raise UsageError(
                f'{self.name}: unit is {self.unit!r}. Say "matrix" for products of matrices, "vector" for everything '
                "else."
            )
        known = {name for spec in self.inputs for name in axis_names(spec.shape)} | set(self.derived)
        for spec in self.outputs:
            for name in axis_names(spec.shape):
                if name not in known:
                    raise UsageError(
                        f"{self.name}: output {spec.name} uses axis {name!r}, which no input has. Axes of the "
                        f"inputs: {sorted(known)}. Take one, or let it follow from them: "
                        f'derived={{"rows": "cols // 2"}}. Where it depends on values, declare the most there can be '
                        "(docs/kernels.md, Outputs whose size depends on values)."
                    )
        choices = {scalar.name: scalar.choices for scalar in self.scalars}
        known_inputs = {spec.name for spec in self.inputs}
        for spec in (*self.inputs, *self.outputs):
            if spec.dtype != "T" and not set(choices.get(spec.dtype) or (spec.dtype,)) <= set(DTYPES):
                raise UsageError(
                    f"{self.name}: {spec.name} has unknown dtype {spec.dtype!r}. Known: T, {', '.join(DTYPES)}, or a "
                    "parameter with such choices. Choose one of them."
                )
            if spec.domain not in DOMAINS:
                raise UsageError(
                    f"{self.name}: {spec.name} has unknown domain {spec.domain!r}. Known: {', '.join(DOMAINS)}."
                )
            if spec.ties is not None and (
                spec.ties.rule not in TIES
                or spec in self.inputs
                or (isinstance(spec.ties.scores, str) and spec.ties.scores not in known_inputs)
            ):
                raise UsageError(
                    f"{self.name}: {spec.name} has ties {spec.ties.rule!r} of {spec.ties.scores!r}. Outputs of "
                    f"indices have a rule ({', '.join(TIES)}) and the name of an input."
                )
            if spec.domain != "any" and (spec.below is not None or spec in self.outputs):
                raise UsageError(
                    f"{self.name}: {spec.name} declares a domain: only inputs without `below` do. Remove it; a law "
                    "says what outputs keep to."
                )
        optional = [spec.name for spec in self.inputs if spec.optional]
        presence = tuple(Scalar(name=f"has_{name}", default=True, choices=(True, False)) for name in optional)
        object.__setattr__(self, "presence", presence)
        parameters = [scalar.name for scalar in (*self.scalars, *self.presence)]
        names = [*(spec.name for spec in (*self.inputs, *self.outputs)), *parameters]
        if len(set(names)) != len(names):
            raise UsageError(f"{self.name}: inputs, outputs and scalars share a name: {sorted(names)}. Rename one.")
        check_overwritten(self.name, self.inputs, self.outputs)
        check_lists(self.name, self.inputs, self.outputs)
        object.__setattr__(self, "list_axes", tuple(dict.fromkeys(i.many for i in self.inputs if i.many is not None)))
        check_offsets(self.name, self.inputs, self.outputs)
        check_optional(self.name, self.inputs, self.outputs, set(self.derived))
        check_gradients(self.name, self.gradient, self.further_gradients, self.inputs, self.overwritten)
        if self.derived:
            # frozen, and still being built: what is derived stands in every case and workload from here on
            for kind in ("cases", "workloads", "grid"):
                items = tuple(
                    replace(item, axes=self.completed(item.axes, self.scalar_values(item.scalars)))
                    for item in getattr(self, kind)
                )
                object.__setattr__(self, kind, items)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axis names, in order of first appearance."""
        return tuple(dict.fromkeys((*(name for spec in self.inputs for name in axis_names(spec.shape)), *self.derived)))

    @property
    def free_axes(self) -> tuple[str, ...]:
        """The axes that are not derived from others."""
        return tuple(name for name in self.axes if name not in self.derived)

    @property
    def whole(self) -> Operator:
        """The operator as its definition has it, whatever form it has for a call."""
        return self.written_as or self

    @property
    def one_form(self) -> bool:
        """Whether all calls have the same tensors: no input is optional or a list."""
        return not self.presence and not self.list_axes

    @property
    def fresh(self) -> tuple[TensorSpec, ...]:
        """The outputs that a call makes and returns: those that overwrite no input."""
        return tuple(spec for spec in self.outputs if spec.overwrites is None)

    @property
    def overwritten(self) -> dict[str, str]:
        """The inputs that a call overwrites, each with the output that it holds afterwards."""
        return {spec.overwrites: spec.name for spec in self.outputs if spec.overwrites is not None}

    def bind(
        self, shapes: Mapping[str, tuple[int, ...]], scalars: Mapping[str, ScalarValue] | None = None
    ) -> dict[str, AxisValue]:
        """The axes for inputs of these shapes, and those of outputs that follow from them and the parameters (their
        defaults where
        none are given); raises UsageError when the inputs do not fit together."""
        missing = [spec.name for spec in self.inputs if spec.name not in shapes and not spec.optional]
        if missing:
            raise UsageError(
                f"{self.name} needs {', '.join(spec.name for spec in self.inputs)}; not given: {', '.join(missing)}."
            )
        found = bind_axes([(spec.name, spec.shape, shapes[spec.name]) for spec in self.inputs if spec.name in shapes])
        found |= self.listed
        return {**self.completed(found, self.scalar_values(scalars or {})), **found} if self.derived else found

    def scalar_values(self, given: Mapping[str, ScalarValue]) -> dict[str, ScalarValue]:
        """Every scalar's value: those given, checked, and the defaults for the others."""
        known = {scalar.name: scalar for scalar in (*self.scalars, *self.presence)}
        for name, value in given.items():
            if name in self.list_axes:
                continue  # it tells the form of a call
            if name not in known:
                takes = f"It takes: {', '.join(known) or 'none, so leave it away'} (see: opforge show {self.name})."
                raise UsageError(f"{self.name} has no parameter {name!r}. {takes}")
            choices = known[name].choices
            if choices and value not in choices:
                raise UsageError(f"{self.name}: {name} = {value!r:.60} is not one of {choices}. Choose one of them.")
        form = {name: given[name] for name in self.list_axes if name in given}
        return {**{name: given.get(name, scalar.default) for name, scalar in known.items()}, **form}

    def completed(self, axes: Axes, scalars: Mapping[str, ScalarValue]) -> dict[str, AxisValue]:
        """The axes with every derived one as the others and the parameters have it."""
        names = {**axes, **scalars}
        return {**axes, **{name: worth(f"{self.name}: {name}", text, names) for name, text in self.derived.items()}}

    def violated(self, axes: Axes, dtype: str, scalars: Mapping[str, ScalarValue]) -> Constraint | None:
        """The first constraint that does not hold, or None. A derived axis of another size is one."""
        names = {**axes, **scalars, "dtype": dtype}
        for name, expression in self.derived.items():
            if evaluate(expression, names) != axes[name]:
                return Constraint(
                    name=f"{name}_follows",
                    expression=f"{name} == ({expression})",
                    about=f"{name} is {axes[name]}, and follows from the other axes and parameters",
                )
        for spec in self.inputs:
            if spec.offsets is not None:
                rule = f"{spec.shape} >= 2 or {spec.shape} == 1 and {spec.offsets} == 0"
                if not evaluate(rule, names):
                    about = f"{spec.name} begins with 0 and ends with {spec.offsets}"
                    return Constraint(name=f"{spec.name}_covers", expression=rule, about=about)
        return next((constraint for constraint in self.constraints if not evaluate(constraint.expression, names)), None)

    def takes(self, case: Case | Workload, dtype: str) -> bool:
        """Whether the constraints allow this case or workload in `dtype`."""
        return self.violated(case.axes, dtype, self.scalar_values(case.scalars)) is None

    def compute_dtype_of(self, dtype: str, scalars: Mapping[str, ScalarValue]) -> str:
        """The format in which a call of these parameters multiplies: `dtype`, unless `compute_dtype` says otherwise."""
        return (
            str(evaluate(self.compute_dtype, {**self.scalar_values(scalars), "dtype": dtype}))
            if self.compute_dtype is not None
            else dtype
        )

    def kind_of_call(self, scalars: Mapping[str, ScalarValue]) -> dict[str, ScalarValue]:
        """The parameters that are choices, as a call has them: another scaling or activation is other work, another eps
        is not. What only
        `compute_dtype` asks for is left to the format."""
        values = self.scalar_values(scalars)
        return {
            scalar.name: values[scalar.name]
            for scalar in (*self.scalars, *self.presence)
            if scalar.choices and scalar.name not in (self.compute_dtype or "")
        }

    def cost(self, axes: Axes, dtype: str, scalars: Mapping[str, ScalarValue] | None = None) -> Cost:
        """FLOPs and least traffic for these axes (and parameters; their defaults where none are given). Bytes default
        to each input read once and each output written once."""
        values = self.scalar_values(scalars or {})
        names = {**axes, **values, "dtype": dtype, "itemsize": DTYPES[dtype].itemsize}

        def traffic(specs: tuple[TensorSpec, ...]) -> int:
            total = 0
            for spec in specs:
                if not values.get(f"has_{spec.name}", True):
                    continue
                elements = sum(math.prod(shape) for shape in shapes_of(spec, axes))
                total += elements * DTYPES[spec.dtype_for(dtype, values)].itemsize
            return total

        def number(field: str) -> int:
            text = getattr(self, field)
            value = worth(f"{self.name}: {field}", text, names)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
                raise UsageError(
                    f"{self.name}: {field} {text!r} is {value!r:.80}, no number of 0 or more. Write an expression over "
                    "axes, itemsize and parameters."
                )
            return int(value)

        return Cost(
            flops=number("flops"),
            bytes_read=number("bytes_read") if self.bytes_read is not None else traffic(self.inputs),
            bytes_written=number("bytes_written") if self.bytes_written is not None else traffic(self.outputs),
            bytes_saved=number("bytes_saved") if self.bytes_saved is not None else 0,
        )
