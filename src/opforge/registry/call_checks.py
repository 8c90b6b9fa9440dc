"""The calls that a definition names, its cases and workloads: their axes, words and parameters, and what the
definition's expressions are worth for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from opforge.core.definition.call_form import formed
from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.operator import Case, Operator, ScalarValue, TensorSpec, Workload
from opforge.core.definition.shapes import full_shape, tokens
from opforge.core.definition.situations import DISTRIBUTIONS, LAYOUTS
from opforge.core.language.errors import UsageError, unknown
from opforge.core.language.expr import worth

SCALES = ("laptop", "gpu")
FORMATS = (*DTYPES, "tfloat32")
"""In which factors may be multiplied."""
SEEDS = 1 << 63
INT64 = 1 << 63
MOST_ELEMENTS = 1 << 62
"""No tensor has as many: its size in bytes, and every index of it, stay within 64 bits."""


def check_calls(operator: Operator) -> None:
    """Raises UsageError for a case or workload without its axes, words that nobody knows, parameters of another kind,
    and expressions without a value for it.
    """
    calls: tuple[Case | Workload, ...] = (*operator.cases, *operator.workloads, *operator.grid)
    for item in calls:
        _check_axes(operator, item)
        _check_situation(operator, item)
        _check_scalars(operator, item)
    _check_both_ways(operator)
    for item in calls:
        _check_expressions(operator, item)
    for dtype in operator.dtypes:
        if not any(case.dtype in (None, dtype) and operator.takes(case, dtype) for case in operator.cases):
            raise UsageError(
                f"{operator.name} has no case for {dtype} that its constraints allow. Add one, or take {dtype} out of "
                "dtypes."
            )


def _check_both_ways(operator: Operator) -> None:
    for scalar in operator.presence:
        for wanted in (True, False):
            if not any(case.scalars.get(scalar.name, True) is wanted for case in operator.cases):
                raise UsageError(
                    f"{operator.name}: {scalar.name.removeprefix('has_')} is optional, and no case is "
                    f"{'with' if wanted else 'without'} it. Add one: scalars={{{scalar.name!r}: {wanted}}}."
                )


def same_kind(value: ScalarValue, default: ScalarValue) -> bool:
    """Whether a value is of the kind of a parameter's default. A whole number has 64 bits, and may stand for a
    number.
    """
    if isinstance(default, float):
        return isinstance(value, int | float) and not isinstance(value, bool) and value == value
    return type(value) is type(default) and (not isinstance(value, int) or -INT64 <= value < INT64)


def where(operator: Operator, item: Case | Workload) -> str:
    """Whose slip it is, at the beginning of a sentence."""
    return f"{operator.name}: {type(item).__name__.lower()} {item.name!r}"


def _check_axes(operator: Operator, item: Case | Workload) -> None:
    place = where(operator, item)
    if set(item.axes) != set(operator.axes):
        raise UsageError(
            f"{place} has the axes {', '.join(map(str, item.axes)) or 'none'}; it needs "
            f"{', '.join(operator.axes) or 'none'}. Give a size for each of these, and for no other."
        )
    specs = (*operator.inputs, *operator.outputs)
    variadic = {token[1:] for spec in specs for token in tokens(spec.shape) if token.startswith("*")}
    variadic |= set(operator.list_axes)
    for name, value in item.axes.items():
        sizes = value if isinstance(value, tuple) and name in variadic else (value,)
        if not all(isinstance(size, int) and size >= 0 for size in sizes) or (
            name in variadic and not isinstance(value, tuple)
        ):
            example = "(3, 5), or (4,) for one axis" if name in variadic else "129"
            raise UsageError(
                f"{place}: {name} cannot be {value!r}. It is "
                f"{'a tuple of whole numbers' if name in variadic else 'a whole number'}, none below 0: {example}."
            )
        if name in operator.list_axes and not value:
            raise UsageError(f"{place}: {name} is empty. A list has one tensor at the least: {name}=(3,).")
    try:
        operator.scalar_values(item.scalars)
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from error
    form = formed(operator, {**item.axes, **{scalar.name: True for scalar in operator.presence}})
    for spec in (*form.inputs, *form.outputs):
        if math.prod(full_shape(spec.shape, item.axes)) >= MOST_ELEMENTS:
            raise UsageError(f"{place}: no memory holds {spec.name} of shape {full_shape(spec.shape, item.axes)}.")
    # shapes that leave two axes open at once, or say nothing of one
    found = form.bind({spec.name: full_shape(spec.shape, item.axes) for spec in form.inputs}, item.scalars)
    if found != dict(item.axes):
        raise UsageError(f"{place}: its shapes give {found}, and it says {dict(item.axes)}. Let them agree.")


def _check_situation(operator: Operator, item: Case | Workload) -> None:
    place = where(operator, item)
    words = item.layout.split()
    for word in words:
        if word not in LAYOUTS:
            raise unknown(f"layout ({place})", word, LAYOUTS)
    if len(words) not in (1, len(operator.inputs)):
        raise UsageError(
            f"{place} has the layout {item.layout!r}. Say one word for all inputs, or one for each of "
            f"{', '.join(spec.name for spec in operator.inputs)}."
        )
    if isinstance(item, Workload):
        if item.scale not in SCALES:
            raise UsageError(f'{place} has scale {item.scale!r}: it would never be timed. Say "laptop" or "gpu".')
        return
    words = item.distribution.split()
    for word in words:
        if word not in DISTRIBUTIONS:
            raise unknown(f"distribution ({place})", word, DISTRIBUTIONS)
    if len(words) not in (1, len(operator.inputs)) or (len(words) > 1 and "twins" in words):
        raise UsageError(
            f"{place} has the distribution {item.distribution!r}. Say one word for all inputs, or one for each of "
            f"{', '.join(spec.name for spec in operator.inputs)}; twins are of all of them."
        )
    if item.dtype not in (None, *operator.dtypes):
        raise UsageError(
            f"{place} is for {item.dtype}, and the operator has {', '.join(operator.dtypes)}: it would never be run. "
            f"Take dtype out of the case, or add {item.dtype!r} to dtypes."
        )
    if item.seed is not None and not 0 <= item.seed < SEEDS:
        raise UsageError(f"{place} has the seed {item.seed}. Write a whole number of 63 bits, or leave it away.")
    if item.pattern not in (0, 1, 2):
        raise UsageError(f"{place} has the pattern {item.pattern}. There are 0 and 1, and 2 for both in turn.")


def _check_scalars(operator: Operator, item: Case | Workload) -> None:
    defaults = {scalar.name: scalar.default for scalar in (*operator.scalars, *operator.presence)}
    for name, value in item.scalars.items():
        if not same_kind(value, defaults[name]):
            raise UsageError(
                f"{where(operator, item)}: {name} is {value!r}, a {type(value).__name__}; it takes a "
                f"{type(defaults[name]).__name__}, e.g. {defaults[name]!r}."
            )


def _check_expressions(operator: Operator, item: Case | Workload) -> None:
    place, scalars = where(operator, item), operator.scalar_values(item.scalars)
    names = {**item.axes, **scalars, "dtype": operator.dtypes[0]}
    for constraint in operator.constraints:
        holds = worth(f"{place}: constraint {constraint.name!r}", constraint.expression, names)
        if not isinstance(holds, bool):
            raise UsageError(
                f"{place}: constraint {constraint.name!r} ({constraint.expression}) is {holds!r:.60}. Write what is "
                'True or False: "cols % 2 == 0".'
            )
    dtypes = [item.dtype] if isinstance(item, Case) and item.dtype else operator.dtypes
    violated = [operator.violated(item.axes, dtype, scalars) for dtype in dtypes]
    outside = next((constraint for constraint in violated if constraint is not None), None)
    if outside is not None and None not in violated:
        raise UsageError(
            f"{place} is outside of {outside.name} ({outside.expression}) in every dtype: it would never be run. "
            "Change its axes, or the constraint."
        )
    if outside is not None:
        return
    operator.cost(item.axes, operator.dtypes[0], item.scalars)
    for field in ("length", "shared"):
        _number(place, f"tolerance.{field}", getattr(operator.tolerance, field), names)
    for spec in operator.inputs:
        _check_whole(place, spec, names)
    if operator.compute_dtype is not None:
        compute_dtype = worth(
            f"{place}: compute_dtype", operator.compute_dtype, {**scalars, "dtype": operator.dtypes[0]}
        )
        if compute_dtype not in FORMATS:
            raise UsageError(
                f"{place}: compute_dtype ({operator.compute_dtype}) is {compute_dtype!r:.60}, no format. "
                f"Known: {', '.join(FORMATS)}."
            )


def _check_whole(place: str, spec: TensorSpec, names: Mapping[str, ScalarValue | Any]) -> None:
    """The values of an input of whole numbers."""
    if spec.below is not None:
        least = _number(place, f"{spec.name}.below", spec.below, names)
        if least != int(least) or least >= INT64:
            raise UsageError(f"{place}: {spec.name}.below ({spec.below}) is {least}, no whole number of 64 bits.")
        if spec.least is not None:
            first = worth(f"{place}: {spec.name}.least", spec.least, names)
            if not isinstance(first, int) or isinstance(first, bool) or not -INT64 <= first < max(least, 1):
                raise UsageError(
                    f"{place}: {spec.name}.least ({spec.least}) is {first!r:.60}, no whole number less than below "
                    f"({least:g}). Write the least value that a caller may give."
                )
    for text in spec.sometimes:
        value = worth(f"{place}: {spec.name}.sometimes", text, names)
        if not isinstance(value, int) or isinstance(value, bool) or not -INT64 <= value < INT64:
            raise UsageError(f"{place}: {spec.name}.sometimes ({text}) is {value!r:.60}, no whole number of 64 bits.")


def _number(place: str, what: str, text: str, names: Mapping[str, Any]) -> float:
    value = worth(f"{place}: {what}", text, names)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise UsageError(
            f'{place}: {what} ({text}) is {value!r:.60}. Write an expression that is a number of 0 or more: "cols".'
        )
    return float(value)
