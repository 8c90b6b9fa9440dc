"""What a definition must be before anything is done with it, so that a slip in an op.py is named where it stands and not met later."""

from __future__ import annotations

import keyword
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from opforge.core.dtypes import DTYPES
from opforge.core.errors import UsageError, unknown
from opforge.core.expr import FUNCTIONS, evaluate
from opforge.core.operator import Case, Constraint, Law, Operator, Scalar, TensorSpec, Workload
from opforge.core.shapes import tokens

KINDS: Mapping[str, type] = {
    "inputs": TensorSpec,
    "outputs": TensorSpec,
    "scalars": Scalar,
    "dtypes": str,
    "constraints": Constraint,
    "laws": Law,
    "cases": Case,
    "workloads": Workload,
    "implementations": str,
}
SCALES = ("laptop", "gpu")


def fits(name: str) -> bool:
    """Whether an operator may have this name: Python finds it in `opforge.ops`, and torch registers a custom operator of that name."""
    # "name" is what torch.ops.opforge itself is called
    return name.isidentifier() and name.isascii() and not keyword.iskeyword(name) and not name.startswith("__") and name != "name"


def check_definition(operator: Operator) -> None:
    """Raises UsageError for a definition that would be misread: a field that is no tuple of its noun, a name that is none or means two
    things, a dtype or scale that nobody knows, a case without its axes, an expression without a value."""
    if not fits(operator.name):
        raise UsageError(f"{operator.name!r} cannot name an operator, neither in Python nor in torch. Use lower-case letters, digits and underscores, e.g. rotary_embedding.")
    for name, kind in KINDS.items():
        field: Any = getattr(operator, name)
        if not isinstance(field, tuple | list) or not all(isinstance(item, kind) for item in field):
            noun, one = ("texts", '"…"') if kind is str else (kind.__name__, f"{kind.__name__}(…)")
            raise UsageError(f"{operator.name}: {name} must be a tuple of {noun}, not {field!r:.80}. A tuple of one ends with a comma: ({one},).")
    _check_names(operator)
    for dtype in operator.dtypes:
        if dtype not in DTYPES:
            raise unknown("dtype", dtype, DTYPES)
    if not operator.cases:
        raise UsageError(f"{operator.name} has no cases. Add one: there is nothing to verify it on.")
    calls: tuple[Case | Workload, ...] = (*operator.cases, *operator.workloads)
    for item in calls:
        _check_call(operator, item)
    # what the expressions may name is the same for all of them
    for first in (calls[0], *operator.workloads[:1]):
        operator.takes(first, operator.dtypes[0])
        operator.cost(first.axes, operator.dtypes[0], first.scalars)
        evaluate(operator.tolerance.length, {**first.axes, **operator.scalar_values(first.scalars), "dtype": operator.dtypes[0]})


def _check_names(operator: Operator) -> None:
    axes = set(operator.axes)
    for name in axes:
        if not name.isidentifier():
            raise UsageError(f'{operator.name}: {name!r} is no axis. A shape has names, *names and whole numbers with spaces between them: "*lead cols".')
    for name in (*(spec.name for spec in (*operator.inputs, *operator.outputs)), *(scalar.name for scalar in operator.scalars)):
        if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
            raise UsageError(f"{operator.name}: {name!r} cannot name a tensor or a parameter: it is an argument of functions in Python and in torch. Rename it.")
    for scalar in operator.scalars:
        if scalar.name in axes or scalar.name in ("dtype", "itemsize") or scalar.name in FUNCTIONS:
            raise UsageError(f"{operator.name}: {scalar.name!r} is a parameter, and something else in expressions. Rename the parameter.")
        if type(scalar.default) not in (bool, int, float, str):
            raise UsageError(f"{operator.name}: {scalar.name} = {scalar.default!r:.80} by default is neither a number, True or False, nor a word.")
        if isinstance(scalar.default, str) and not scalar.choices:
            raise UsageError(f"{operator.name}: {scalar.name} is a word. List its choices: a kernel is given the number of the one that was chosen.")
        if scalar.choices and scalar.default not in scalar.choices:
            raise UsageError(f"{operator.name}: {scalar.name} = {scalar.default!r} by default is not one of {scalar.choices}.")
    for kind in ("cases", "workloads", "implementations"):
        names = Counter(item if isinstance(item, str) else item.name for item in getattr(operator, kind))
        for name, count in names.items():
            if count > 1:
                raise UsageError(f"{operator.name}: {name!r} stands {count} times among its {kind}. Records are told apart by that name: rename or remove one.")


def _check_call(operator: Operator, item: Case | Workload) -> None:
    where = f"{operator.name}: {type(item).__name__.lower()} {item.name!r}"
    if set(item.axes) != set(operator.axes):
        raise UsageError(f"{where} has the axes {', '.join(map(str, item.axes)) or 'none'}; it needs {', '.join(operator.axes) or 'none'}.")
    variadic = set(_variadic(operator))
    for name, value in item.axes.items():
        sizes = value if isinstance(value, tuple) and name in variadic else (value,)
        if not all(isinstance(size, int) and size >= 0 for size in sizes):
            raise UsageError(f"{where}: {name} cannot be {value!r}. It is {'a tuple of whole numbers' if name in variadic else 'a whole number'}, none below 0.")
    if isinstance(item, Case) and item.dtype not in (None, *operator.dtypes):
        raise UsageError(f"{where} is for {item.dtype}, and the operator has {', '.join(operator.dtypes)}: it would never be run.")
    if isinstance(item, Workload) and item.scale not in SCALES:
        raise UsageError(f'{where} has scale {item.scale!r}: it would never be timed. Say "laptop" or "gpu".')
    operator.scalar_values(item.scalars)


def _variadic(operator: Operator) -> Iterator[str]:
    return (token[1:] for spec in (*operator.inputs, *operator.outputs) for token in tokens(spec.shape) if token.startswith("*"))
