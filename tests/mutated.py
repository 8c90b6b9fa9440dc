"""Definitions with one field changed, and which of them are right: for tests/test_definition_fields.py.

What is right is said here by rules that share no code with opforge's checks: Python's own eval for expressions, and the
reference itself, run by torch on random tensors of the mutated shapes.
"""

from __future__ import annotations

import dataclasses
import keyword
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from opforge.core.definition.operator import (
    Case,
    Constraint,
    Law,
    Like,
    Operator,
    Scalar,
    TensorSpec,
    Ties,
    Tolerance,
    Workload,
)
from opforge.core.definition.pipeline import Pipeline

WRITTEN = {
    "Operator": (
        *("name", "about", "inputs", "outputs", "reference", "flops", "scalars", "dtypes", "constraints", "derived"),
        *("bytes_read", "bytes_written", "bytes_saved", "tolerance", "laws", "cases", "workloads", "implementations"),
        *("differentiable", "source", "unit", "compute_dtype", "gradient", "further_gradients", "carried", "follows"),
        *("like", "grid", "used"),
    ),
    "TensorSpec": (
        *("name", "shape", "dtype", "about", "below", "sometimes", "domain", "ties", "rounded_to"),
        *("least", "distinct", "overwrites", "optional", "offsets", "many"),
    ),
    "Scalar": ("name", "default", "choices", "about"),
    "Constraint": ("name", "expression", "about"),
    "Law": ("name", "about", "holds"),
    "Tolerance": (
        "factor",
        "length",
        "magnitude",
        "roundings",
        "rounded",
        "errors",
        "shared",
        "rounds_factors",
        "whole_range",
        "about",
    ),
    "Case": ("name", "axes", "why", "distribution", "layout", "dtype", "scalars", "seed", "pattern"),
    "Workload": ("name", "axes", "source", "scale", "scalars", "layout"),
    "Ties": ("rule", "scores", "near"),
    "Like": ("function", "lower", "autocast", "only_kernels", "name"),
}
"""The fields that a definition writes."""


class Odd:
    """An object of a guest's own, which cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


def returns(value: Any) -> Callable[..., Any]:
    return lambda *given, **named: value


def pool(operator: Operator) -> tuple[Any, ...]:
    """Values of every type, some of which are right somewhere."""
    case = operator.cases[0]
    axis = operator.axes[0]
    return (
        *(None, True, False, 0, 1, 2, 3, -1, 2**70, 0.5, -0.5, 4.0, math.nan, math.inf, 3 + 4j, ...),
        *("", " ", "x", "y", "no_such", "a b", "*lead", "*lead cols", "1+", "1/0", "1e400", "'a'", "True", "-3", "7"),
        *("class", "größe", "nan", "os.system", "float32", "float16", "float99", "T", "int64", "first", "vector"),
        *("normal", "special", "strided", "contiguous contiguous", "laptop", "positive", "torch_eager", axis),
        *(f"2*prod({axis})", f"{axis}", f"len({axis}) >= 0", "dtype == 'float32'", "cols <= 8", "open(1)"),
        *((), (1,), ("x",), ("",), ("float32",), ("float32", "float32"), ("torch_eager",), (None,), (0.5, "a")),
        *([], ["x"], [1], {}, {"x": 1}, {"lead": 3}, {axis: 1}, {axis: (3,)}, {axis: -1}, {axis: [2]}, {1: 2}),
        *({axis: returns(0)}, {"blocks": "3"}, {"blocks": 3}, {axis: "3"}, {"eps": "a"}, {"eps": 0.25}, {"eps": True}),
        *(set(), frozenset({"x"}), b"x", bytearray(b"x"), range(3), Odd(), object(), Odd, int, len),
        *(returns(0), returns(None), returns(()), returns({}), returns({"y": "x"}), returns((1, 2)), returns("bad")),
        *(returns({"y": None}), returns({"no_such": torch.ones(1)}), returns({"y": torch.ones(7, 11, 13)})),
        *(lambda: 0, lambda x: x, lambda x, **named: x * 1, torch.ones(3), torch.float32, Path("x"), iter("ab")),
        *(case, operator.inputs[0], operator.inputs, operator.cases, operator.tolerance, operator.laws),
        *(Tolerance(factor=2.0), Scalar(name="p", default=1), (Scalar(name="p", default=1),), operator),
        (Case(name="other", axes=case.axes, why="another"),),
        (Law(name="held", about="always", holds=lambda inputs, outputs, scalars: None),),
        (Constraint(name="all", expression="1 == 1", about="everything"),),
        (Workload(name="other", axes=case.axes, source="another"),),
        *(Ties(rule="first", scores="x"), (TensorSpec(name="x", shape="n"),), TensorSpec),
    )


@dataclass(frozen=True)
class Mutation:
    """A definition with `value` in one field of one noun; `make` builds it, and may be refused."""

    noun: str
    field: str
    value: Any
    make: Callable[[], Operator]


def mutations(operator: Operator) -> Iterator[Mutation]:
    """Every value of the pool in every field of the operator and of one of each of its nouns."""
    for noun, whole in _places(operator):
        for field in WRITTEN[type(noun).__name__]:
            for value in pool(operator):
                make = lambda noun=noun, whole=whole, field=field, value=value: whole(  # noqa: E731
                    dataclasses.replace(noun, **{field: value})
                )
                yield Mutation(type(noun).__name__, field, value, make)


PIPELINE_FIELDS = {
    "Stage": ("name", "operator", "axes", "inputs", "scalars"),
    "PipelineCase": ("name", "axes", "why"),
    "Pipeline": ("name", "about", "stages", "cases", "dtypes"),
}


def pipeline_mutations(pipeline: Pipeline, operator: Operator) -> Iterator[tuple[str, Callable[[], Pipeline]]]:
    """Every value of the pool in every field of a pipeline, of one of its stages and of one of its cases."""
    places: list[tuple[Any, Callable[[Any], Pipeline]]] = [(pipeline, lambda changed: changed)]
    for kind in ("stages", "cases"):
        items = getattr(pipeline, kind)

        def whole(changed: Any, kind: str = kind, items: Any = items) -> Pipeline:
            return dataclasses.replace(pipeline, **{kind: (*items[:-1], changed)})

        places.append((items[-1], whole))
    for noun, made in places:
        for field in PIPELINE_FIELDS[type(noun).__name__]:
            for value in (*pool(operator), *pipeline.stages, pipeline.stages[:1], pipeline.cases):
                where = f"{type(noun).__name__}.{field} = {type(value).__name__}"
                make = lambda noun=noun, made=made, field=field, value=value: made(  # noqa: E731
                    dataclasses.replace(noun, **{field: value})
                )
                yield where, make


def _places(operator: Operator) -> Iterator[tuple[Any, Callable[[Any], Operator]]]:
    yield operator, lambda changed: changed
    yield operator.tolerance, lambda changed: dataclasses.replace(operator, tolerance=changed)
    for kind in ("inputs", "outputs", "scalars", "constraints", "laws", "cases", "workloads", "like", "grid"):
        items = getattr(operator, kind)
        # the first of its kind; of the cases the last plain one, which is worth running
        for place in range(len(items))[: 2 if kind == "inputs" else 1]:

            def whole(changed: Any, kind: str = kind, items: Any = items, place: int = place) -> Operator:
                return dataclasses.replace(operator, **{kind: (*items[:place], changed, *items[place + 1 :])})

            yield items[place], whole
    for place, spec in enumerate(operator.outputs):
        if spec.ties is not None:

            def tied(changed: Any, place: int = place, spec: TensorSpec = spec) -> Operator:
                outputs = list(operator.outputs)
                outputs[place] = dataclasses.replace(spec, ties=changed)
                return dataclasses.replace(operator, outputs=tuple(outputs))

            yield spec.ties, tied


# ---- what is right ----

FUNCTIONS = {
    "prod": lambda v: math.prod(v) if isinstance(v, tuple) else v,
    "last": lambda v: (v[-1] if v else 1) if isinstance(v, tuple) else v,
    "cdiv": lambda a, b: -(-a // b),
    "next_pow2": lambda n: 1 << max(0, n - 1).bit_length(),
    "min": min,
    "max": max,
    "abs": abs,
    "len": len,
    "sqrt": math.sqrt,
    "log2": math.log2,
}


def valued(operator: Operator, text: Any, case: Any, **more: Any) -> Any:
    """What Python makes of an expression. Raises what it raises where it has no value."""
    defaults = {scalar.name: scalar.default for scalar in operator.scalars}
    names = {**case.axes, **defaults, **case.scalars, "dtype": operator.dtypes[0], **more}
    return eval(text.strip(), {"__builtins__": {}, **FUNCTIONS}, names)


def number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def named(value: Any) -> bool:
    return isinstance(value, str) and value != "" and value.isprintable() and " " not in value


def argument(value: Any) -> bool:
    return isinstance(value, str) and value.isascii() and value.isidentifier() and not keyword.iskeyword(value)


def shape_of(text: str, axes: Mapping[str, Any]) -> tuple[int, ...]:
    sizes: list[int] = []
    for word in text.split():
        value = int(word) if word.isdigit() else axes[word.removeprefix("*")]
        sizes += value if isinstance(value, tuple) else [value]
    return tuple(sizes)


def small(operator: Operator) -> list[Case]:
    return [
        case
        for case in operator.cases
        if all(math.prod(shape_of(spec.shape, case.axes)) < 5000 for spec in (*operator.inputs, *operator.outputs))
    ]


def unfit(operator: Operator) -> str:
    """What of the reference, or of what the tolerance says of it, does not fit the shapes and dtypes that are declared;
    "" where all does.
    """
    generator = torch.Generator().manual_seed(3)
    defaults = {scalar.name: scalar.default for scalar in operator.scalars}
    for case in small(operator):
        scalars = {**defaults, **case.scalars}
        inputs = {}
        for spec in operator.inputs:
            shape = shape_of(spec.shape, case.axes)
            if spec.below is not None:
                most = max(1, int(valued(operator, spec.below, case)))
                whole = torch.randint(0, most, shape, generator=generator)
                inputs[spec.name] = whole.double() if spec.dtype == "T" else whole
            else:
                inputs[spec.name] = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5
        returned = operator.reference(*inputs.values(), **scalars)
        found = returned if isinstance(returned, tuple) else (returned,)
        outputs = dict(zip((spec.name for spec in operator.outputs), found, strict=True))
        if any(tuple(outputs[spec.name].shape) != shape_of(spec.shape, case.axes) for spec in operator.outputs):
            return f"the reference gives another shape in {case.name}"
        tolerance = operator.tolerance
        for function, count in ((tolerance.magnitude, 1), (tolerance.rounded, 2)):
            for name, part in (function(inputs, outputs, scalars) if function else {}).items():
                if not _broadcasts(part if count == 2 else (part,), outputs[name], count):
                    return f"the tolerance's size of {name} does not fit in {case.name}"
        for name, part in (tolerance.errors(inputs, outputs, scalars, "float32") if tolerance.errors else {}).items():
            if not _broadcasts((part.largest, part.typical), outputs[name], 2):
                return f"the tolerance's errors of {name} do not fit in {case.name}"
    return ""


def _broadcasts(parts: Any, output: torch.Tensor, count: int) -> bool:
    return len(parts) == count and all((part + torch.zeros_like(output)).shape == output.shape for part in parts)


def objection(mutation: Mutation, operator: Operator, folder: Path | None) -> str:
    """Why an accepted definition is not as right as the one it was made from, or why no rule can say; "" where it
    is.
    """
    try:
        if not RULES[mutation.noun, mutation.field](mutation.value, operator, folder):
            return f"no such {mutation.field}"
        return unfit(operator)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _text(value: Any, *_: Any) -> bool:
    return isinstance(value, str)


def _line(value: Any, *_: Any) -> bool:
    return isinstance(value, str) and value.strip() != ""


def _function_or_none(value: Any, *_: Any) -> bool:
    return value is None or callable(value)


def _calls(operator: Operator) -> tuple[Any, ...]:
    return (*operator.cases, *operator.workloads)


def _cost(value: Any, operator: Operator, *_: Any) -> bool:
    sizes = {"float32": 4, "float16": 2, "bfloat16": 2}
    return value is None or all(
        number(valued(operator, value, call, itemsize=sizes[operator.dtypes[0]])) for call in _calls(operator)
    )


def _size(value: Any, operator: Operator, *_: Any) -> bool:
    return all(number(valued(operator, value, call)) for call in _calls(operator))


def _follows(value: Any, operator: Operator) -> bool:
    """Whether a function makes inputs of the shapes that are declared, of others."""
    case = small(operator)[0]
    defaults = {scalar.name: scalar.default for scalar in operator.scalars}
    given = {spec.name: torch.ones(shape_of(spec.shape, case.axes)) for spec in operator.inputs}
    made = value(given, {**defaults, **case.scalars})
    return set(made) <= set(given) and all(part.shape == given[name].shape for name, part in made.items())


def _finite(value: Any, *_: Any) -> bool:
    return number(value)


def _axes(value: Any, operator: Operator, *_: Any) -> bool:
    variadic = {word[1:] for spec in operator.inputs for word in spec.shape.split() if word[0] == "*"}
    return set(value) == {*operator.axes} and all(
        (isinstance(held, tuple) and all(type(size) is int and size >= 0 for size in held))
        if name in variadic
        else type(held) is int and held >= 0
        for name, held in value.items()
    )


def _scalars_of_call(value: Any, operator: Operator, *_: Any) -> bool:
    known = {scalar.name: scalar for scalar in operator.scalars}
    return isinstance(value, Mapping) and all(_kind(held, known[name].default) for name, held in value.items())


def _kind(value: Any, default: Any) -> bool:
    return (type(value) in (int, float) and value == value) if type(default) is float else type(value) is type(default)


def _layout(value: Any, operator: Operator, *_: Any) -> bool:
    known = "contiguous misaligned transposed channels_last sliced expanded strided offset_16 offset_32 fenced ordinary"
    words = value.split()
    return len(words) in (1, len(operator.inputs)) and all(word in known.split() for word in words)


def _tuple_of(kind: type, least: int = 0) -> Callable[..., bool]:
    return lambda value, *_: (
        isinstance(value, tuple | list) and len(value) >= least and all(isinstance(item, kind) for item in value)
    )


def _dtype(value: Any, operator: Operator, *_: Any) -> bool:
    known = ("T", "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "int16", "int32")
    known = (*known, "uint8", "bool", "int64")
    choices = [scalar.choices for scalar in operator.scalars if scalar.name == value]
    return value in known or bool(choices and choices[0] and set(choices[0]) <= set(known))


FORMATS = ("float64", "float32", "float16", "bfloat16")
DRAWN = (
    "normal uniform large tiny offset skewed sparse constant_rows integers zeros ones exponents float16_range "
    "scaled scaled_half scaled_quarter twins special"
)
RULES: dict[tuple[str, str], Callable[..., Any]] = {
    **{("Operator", field): _cost for field in ("bytes_read", "bytes_written", "bytes_saved")},
    ("Operator", "flops"): lambda value, operator, _: value is not None and _cost(value, operator),
    ("Operator", "name"): lambda value, *_: argument(value) and value != "name" and not value.startswith("__"),
    ("Operator", "about"): _line,
    ("Operator", "source"): _text,
    ("Operator", "inputs"): _tuple_of(TensorSpec, 1),
    ("Operator", "outputs"): _tuple_of(TensorSpec, 1),
    ("Operator", "reference"): lambda value, *_: callable(value),
    ("Operator", "scalars"): _tuple_of(Scalar),
    ("Operator", "dtypes"): lambda value, operator, _: (
        _tuple_of(str, 1)(value) and set(value) <= set(FORMATS) and len(set(value)) == len(value)
    ),
    ("Operator", "constraints"): _tuple_of(Constraint),
    ("Operator", "derived"): lambda value, operator, _: (
        isinstance(value, Mapping)
        and all(name.isidentifier() for name in value)
        and all(type(valued(operator, text, call)) is int for text in value.values() for call in _calls(operator))
    ),
    ("Operator", "tolerance"): lambda value, *_: isinstance(value, Tolerance),
    ("Operator", "laws"): _tuple_of(Law),
    ("Operator", "cases"): _tuple_of(Case, 1),
    ("Operator", "workloads"): _tuple_of(Workload),
    ("Operator", "implementations"): lambda value, operator, folder: (
        _tuple_of(str)(value)
        and len(set(value)) == len(value)
        and (not value or all(list(folder.glob(f"{name}.*")) for name in value))
    ),
    ("Operator", "differentiable"): lambda value, operator, _: (
        value is None or (_tuple_of(str)(value) and set(value) <= {spec.name for spec in operator.inputs})
    ),
    ("Operator", "unit"): lambda value, *_: value in ("vector", "matrix"),
    ("Operator", "compute_dtype"): lambda value, operator, _: (
        value is None or all(valued(operator, value, call) in FORMATS for call in _calls(operator))
    ),
    ("Operator", "gradient"): lambda value, *_: value is None,
    ("Operator", "further_gradients"): lambda value, *_: value == (),
    ("Operator", "carried"): lambda value, operator, _: (
        _tuple_of(str)(value)
        and all(name.isidentifier() for name in value)
        and len(set(value)) == len(value)
        and not set(value) & {spec.name for spec in operator.inputs}
    ),
    ("TensorSpec", "name"): lambda value, *_: argument(value),
    ("TensorSpec", "shape"): _text,
    ("TensorSpec", "dtype"): _dtype,
    ("TensorSpec", "about"): _text,
    ("TensorSpec", "below"): lambda value, operator, _: (
        value is None or all(type(valued(operator, value, call)) is int for call in _calls(operator))
    ),
    ("TensorSpec", "sometimes"): lambda value, operator, _: (
        _tuple_of(str)(value)
        and all(type(valued(operator, text, call)) is int for text in value for call in _calls(operator))
    ),
    ("TensorSpec", "domain"): lambda value, *_: value in ("any", "nonzero", "positive"),
    ("TensorSpec", "ties"): lambda value, operator, _: (
        value is None or any(spec.ties is value and spec.dtype.startswith("int") for spec in operator.outputs)
    ),
    ("TensorSpec", "rounded_to"): lambda value, *_: (
        value in (None, "exact", "int2", "uint2", "int4", "uint4", "int8", "uint8")
    ),
    ("TensorSpec", "least"): lambda value, operator, _: (
        value is None
        or all(
            type(valued(operator, value, call)) is int
            and any(
                spec.least == value
                and spec.below is not None
                # a range of no values is one of a size of 0
                and (
                    valued(operator, value, call) < valued(operator, spec.below, call)
                    or valued(operator, spec.below, call) == 0
                )
                for spec in operator.inputs
            )
            for call in _calls(operator)
        )
    ),
    ("TensorSpec", "distinct"): lambda value, operator, _: (
        value is False or (value is True and any(spec.distinct and spec.below is not None for spec in operator.inputs))
    ),
    ("TensorSpec", "overwrites"): lambda value, operator, _: (
        value is None
        or any(
            (spec.name, target.shape.split(), target.dtype) == (value, output.shape.split(), output.dtype)
            for spec in operator.inputs
            for output in operator.outputs
            for target in (spec,)
            if output.overwrites == value
        )
    ),
    # these references take a tensor for each input, and none takes a list
    ("TensorSpec", "optional"): lambda value, *_: value is False,
    ("TensorSpec", "offsets"): lambda value, *_: value is None,
    ("TensorSpec", "many"): lambda value, *_: value is None,
    ("Tolerance", "rounds_factors"): lambda value, *_: type(value) is bool,
    ("Tolerance", "whole_range"): lambda value, *_: type(value) is bool,
    ("Operator", "follows"): lambda value, operator, _: value is None or _follows(value, operator),
    ("Scalar", "name"): lambda value, *_: argument(value),
    ("Scalar", "default"): lambda value, *_: type(value) in (bool, int, float, str) and value == value,
    ("Scalar", "choices"): lambda value, operator, _: (
        isinstance(value, tuple | list)
        and all(
            not scalar.choices
            or (
                scalar.default in scalar.choices
                and all(_kind(choice, scalar.default) for choice in scalar.choices)
                and all(call.scalars.get(scalar.name, scalar.default) in scalar.choices for call in _calls(operator))
            )
            for scalar in operator.scalars
        )
        and all(scalar.choices for scalar in operator.scalars if isinstance(scalar.default, str))
    ),
    ("Scalar", "about"): _text,
    ("Constraint", "name"): lambda value, *_: named(value),
    ("Constraint", "expression"): lambda value, operator, _: all(
        any(valued(operator, value, call, dtype=dtype) is True for dtype in operator.dtypes)
        for call in _calls(operator)
    ),
    ("Constraint", "about"): _line,
    ("Law", "name"): lambda value, *_: named(value),
    ("Law", "about"): _line,
    ("Law", "holds"): lambda value, *_: callable(value),
    **{("Tolerance", field): _function_or_none for field in ("magnitude", "rounded", "errors")},
    **{("Tolerance", field): _size for field in ("length", "shared")},
    **{("Tolerance", field): _finite for field in ("factor", "roundings")},
    ("Tolerance", "about"): _text,
    **{(noun, "name"): lambda value, *_: named(value) for noun in ("Case", "Workload")},
    **{(noun, "axes"): _axes for noun in ("Case", "Workload")},
    **{(noun, "scalars"): _scalars_of_call for noun in ("Case", "Workload")},
    **{(noun, "layout"): _layout for noun in ("Case", "Workload")},
    ("Case", "why"): _line,
    ("Case", "distribution"): lambda value, *_: value in DRAWN.split(),
    ("Case", "dtype"): lambda value, operator, _: value is None or value in operator.dtypes,
    ("Case", "seed"): lambda value, *_: value is None or (type(value) is int and 0 <= value < 2**63),
    ("Case", "pattern"): lambda value, *_: type(value) is int and value in (0, 1, 2),
    ("Workload", "source"): _line,
    ("Workload", "scale"): lambda value, *_: value in ("laptop", "gpu"),
    ("Ties", "rule"): lambda value, *_: value in ("any", "first", "last"),
    ("Ties", "scores"): lambda value, operator, _: value in [spec.name for spec in operator.inputs],
    ("Ties", "near"): _finite,
    ("Operator", "grid"): _tuple_of(Workload),
    ("Operator", "like"): _tuple_of(Like),
    ("Operator", "used"): lambda value, *_: _tuple_of(str)(value) and all(map(str.strip, value)),
    ("Like", "function"): lambda value, *_: callable(value) or (isinstance(value, str) and value[:6] == "torch."),
    ("Like", "lower"): lambda value, *_: callable(value),
    ("Like", "autocast"): lambda value, *_: isinstance(value, bool),
    ("Like", "only_kernels"): lambda value, *_: isinstance(value, bool),
    ("Like", "name"): lambda value, *_: value == "" or (isinstance(value, str) and value.isidentifier()),
}
"""For each field: what it may be, beside the reference's working with it."""


def drawn(count: int, seed: int, operators: list[Operator]) -> list[tuple[Operator, Mutation]]:
    """Some of all mutations, spread over definitions and fields."""
    every = [(operator, mutation) for operator in operators for mutation in mutations(operator)]
    return random.Random(seed).sample(every, min(count, len(every)))
