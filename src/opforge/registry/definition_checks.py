"""What a definition must be before anything is done with it, so that a slip in an op.py is named where it stands and
not met later.

The types of fields are checked by the nouns themselves (core.language.fields). Here it is what they say together.
"""

from __future__ import annotations

import inspect
import keyword
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.operator import Operator, Scalar, TensorSpec
from opforge.core.definition.shapes import factors, tokens
from opforge.core.language.errors import UsageError, unknown
from opforge.core.language.expr import FUNCTIONS
from opforge.registry.call_checks import same_kind

TOKEN = re.compile(r"\*[^\W\d]\w*|(?:[^\W\d]\w*|\d+)(?:\*(?:[^\W\d]\w*|\d+))*")
"""What stands in a shape: an axis, any number of axes, a whole number, or a product of axes and whole numbers."""


def fits(name: str) -> bool:
    """Whether an operator may have this name: Python finds it in `opforge.ops`, and torch registers a custom operator
    of that name.
    """
    # "name" is what torch.ops.opforge itself is called
    return (
        name.isidentifier()
        and name.isascii()
        and not keyword.iskeyword(name)
        and not name.startswith("__")
        and name != "name"
    )


def check_definition(operator: Operator) -> None:
    """Raises UsageError for a definition that would be misread: a name that is none or means two things, a dtype or
    scale that nobody knows, a case without its axes, an expression without a value, a function that takes something
    else than it is given.
    """
    if not fits(operator.name):
        raise UsageError(
            f"{operator.name!r} cannot name an operator, neither in Python nor in torch. Use lower-case letters, "
            "digits and underscores, e.g. rotary_embedding."
        )
    for field, what in (
        ("inputs", "there is nothing to compute with"),
        ("outputs", "there is nothing to compute"),
        ("dtypes", "there is nothing to compute in"),
        ("cases", "there is nothing to verify it on"),
    ):
        if not getattr(operator, field):
            raise UsageError(f"{operator.name} has no {field}. Add one: {what}.")
    _check_words(operator)
    _check_names(operator)
    for dtype in operator.dtypes:
        if dtype not in DTYPES:
            raise unknown(f"dtype ({operator.name}: dtypes)", dtype, DTYPES)
    for spec in (*operator.inputs, *operator.outputs):
        _check_tensor(operator, spec)
    for scalar in operator.scalars:
        _check_scalar(operator, scalar)
    for name in operator.differentiable or ():
        if name not in {spec.name for spec in operator.inputs}:
            raise unknown(f"input of {operator.name} for differentiable", name, (spec.name for spec in operator.inputs))
    for name in operator.carried:
        own = name in {spec.name for spec in operator.inputs}
        if own or not name.isidentifier() or operator.carried.count(name) > 1:
            raise UsageError(
                f"{operator.name}: carried has {name!r}, which is {'its own input' if own else 'no name, or twice'}. "
                'Name what only the operator has whose gradients these are: carried=("mask",).'
            )
    _check_likeness(operator)
    _check_functions(operator)


def check_gradient(operator: Operator, known: Collection[str]) -> None:
    """Raises UsageError where the operator that is to compute the gradients is not among the known ones."""
    for name in (operator.gradient, *operator.further_gradients):
        if name is not None and name not in known:
            raise UsageError(
                f"{operator.name} names {name!r} for its gradients, which is no operator here. Make it with: "
                f"opforge new {name}. Or take it out."
            )


def _check_words(operator: Operator) -> None:
    """What is said to readers, or stands in records as a name."""
    said: list[tuple[Any, str]] = [(operator, "about")]
    said += [(item, "about") for item in (*operator.constraints, *operator.laws)]
    said += [(case, "why") for case in operator.cases]
    said += [(workload, "source") for workload in (*operator.workloads, *operator.grid)]
    for noun, field in said:
        if not getattr(noun, field).strip():
            whose = "" if noun is operator else f"{type(noun).__name__.lower()} {noun.name!r}: "
            raise UsageError(
                f"{operator.name}: {whose}{field} is empty. Readers of reports have nothing else: say it in a line."
            )
    for kind in ("cases", "workloads", "grid", "laws", "constraints"):
        for item in getattr(operator, kind):
            if not item.name or not item.name.isprintable() or any(letter.isspace() for letter in item.name):
                raise UsageError(
                    f"{operator.name}: {item.name!r} cannot name one of its {kind}. Records and command lines show it: "
                    "use letters, digits and underscores, e.g. odd_tail."
                )
    for kind in ("cases", "workloads", "grid", "implementations", "dtypes", "laws", "constraints"):
        names = Counter(item if isinstance(item, str) else item.name for item in getattr(operator, kind))
        for name, count in names.items():
            if count > 1:
                raise UsageError(
                    f"{operator.name}: {name!r} stands {count} times among its {kind}. Records are told apart by "
                    "that name: rename or remove one."
                )


def _check_names(operator: Operator) -> None:
    axes = set(operator.axes)
    for spec in (*operator.inputs, *operator.outputs):
        for token in tokens(spec.shape):
            if not TOKEN.fullmatch(token):
                raise UsageError(
                    f"{operator.name}: {token!r} is no axis. A shape has names, *names, whole numbers and products "
                    'with spaces between them: "*lead groups*d".'
                )
    for name in operator.derived:
        if not name.isidentifier():
            raise UsageError(
                f"{operator.name}: derived has {name!r}, which is no axis. Write a name and an expression: "
                '{"blocks": "cdiv(cols, 128)"}.'
            )
    both = set(_variadic(operator)) & {
        name
        for spec in (*operator.inputs, *operator.outputs)
        for token in tokens(spec.shape)
        if not token.startswith("*")
        for name in factors(token)
    }
    for name in sorted(both):
        raise UsageError(
            f"{operator.name}: {name!r} is one axis in one shape and any number of axes (*{name}) in another. Rename "
            "one."
        )
    for name in (
        *(spec.name for spec in (*operator.inputs, *operator.outputs)),
        *(scalar.name for scalar in operator.scalars),
    ):
        if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
            raise UsageError(
                f"{operator.name}: {name!r} cannot name a tensor or a parameter: it is an argument of functions in "
                "Python and in torch. Rename it."
            )
    for scalar in operator.scalars:
        if scalar.name in {*axes, "dtype", "itemsize", "T", *DTYPES, *FUNCTIONS}:
            raise UsageError(
                f"{operator.name}: {scalar.name!r} is a parameter, and something else in expressions and dtypes. "
                "Rename the parameter."
            )
    for name in sorted(axes & {"dtype", "itemsize", *FUNCTIONS}):
        raise UsageError(f"{operator.name}: {name!r} is an axis, and something else in expressions. Rename the axis.")


def _check_tensor(operator: Operator, spec: TensorSpec) -> None:
    if spec.sometimes and spec.below is None:
        raise UsageError(
            f"{operator.name}: {spec.name} has further values (sometimes) of none: say with `below` which whole "
            "numbers it has otherwise."
        )
    if (spec.least is not None or spec.distinct) and spec.below is None:
        raise UsageError(
            f"{operator.name}: {spec.name} says more of its whole numbers (least, distinct), and not which they are: "
            'write below="pages" too.'
        )
    if spec.below is not None and spec in operator.outputs:
        raise UsageError(
            f"{operator.name}: output {spec.name} says which values it is given (below): only inputs are. Remove it; a "
            "law says what outputs keep to."
        )

    dtypes = {spec.dtype_for(dtype, operator.scalar_values({})) for dtype in operator.dtypes}
    if spec.ties is not None and not all(DTYPES[dtype].whole for dtype in dtypes):
        raise UsageError(
            f"{operator.name}: output {spec.name} has a rule for ties and is {', '.join(sorted(dtypes))}: only whole "
            'numbers are indices. Declare dtype="int64", or remove `ties`.'
        )


def _check_scalar(operator: Operator, scalar: Scalar) -> None:
    where = f"{operator.name}: {scalar.name}"
    if isinstance(scalar.default, float) and scalar.default != scalar.default:
        raise UsageError(f"{where} is NaN by default, which equals nothing, not itself. Give it a number.")
    if not same_kind(scalar.default, scalar.default):
        raise UsageError(f"{where} = {scalar.default} by default has more than 64 bits. Leave its upper ones away.")
    if isinstance(scalar.default, str) and not scalar.choices:
        raise UsageError(
            f"{where} is a word. List its choices: a kernel is given the number of the one that was chosen."
        )
    for choice in scalar.choices:
        if not same_kind(choice, scalar.default):
            raise UsageError(
                f"{where}: the choice {choice!r} is another kind of value than its default {scalar.default!r}. Write "
                "all of one kind."
            )
    if len(set(scalar.choices)) != len(scalar.choices):
        raise UsageError(f"{where}: a choice stands twice in {scalar.choices}. Remove one.")
    if scalar.choices and scalar.default not in scalar.choices:
        raise UsageError(
            f"{where} = {scalar.default!r} by default is not one of {scalar.choices}. Choose one, or add it to them."
        )


def _check_likeness(operator: Operator) -> None:
    """Each function that an operator stands for is named once, and what models call it in is said in words."""
    for name, count in Counter(like.name for like in operator.like).items():
        if count > 1:
            raise UsageError(f"{operator.name} stands for {name} {count} times. Lower its calls in one function.")
    for place in operator.used:
        if not place.strip():
            raise UsageError(f'{operator.name}: used has an empty text. Say where models call it: used=("vision",).')


def _check_functions(operator: Operator) -> None:
    """Each function of a definition takes what it is given."""
    inputs = [spec.name for spec in operator.inputs]
    scalars = {scalar.name: scalar.default for scalar in operator.scalars}
    three, four = ["inputs", "outputs", "scalars"], ["inputs", "outputs", "scalars", "dtype"]
    tolerance = operator.tolerance
    functions: list[tuple[str, Callable[..., Any] | None, list[str], dict[str, Any]]] = [
        ("reference", operator.reference, inputs, scalars),
        ("tolerance's magnitude", tolerance.magnitude, three, {}),
        ("tolerance's rounded", tolerance.rounded, three, {}),
        ("tolerance's errors", tolerance.errors, four, {}),
        *((f"law {law.name}", law.holds, three, {}) for law in operator.laws),
        *(
            (f"rule for ties of {spec.name}", spec.ties.scores, ["inputs", "scalars"], {})
            for spec in operator.outputs
            if spec.ties is not None and callable(spec.ties.scores)
        ),
    ]
    for what, function, names, keywords in functions:
        if function is None:
            continue
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            continue  # a builtin that keeps its signature to itself
        try:
            signature.bind(*names, **keywords)
        except TypeError as error:
            raise UsageError(
                f"{operator.name}: the {what} takes {signature}, and is given ({', '.join([*names, *keywords])}): "
                f"{error}. Let them agree."
            ) from error


def _variadic(operator: Operator) -> Iterator[str]:
    return (
        token[1:]
        for spec in (*operator.inputs, *operator.outputs)
        for token in tokens(spec.shape)
        if token.startswith("*")
    )
