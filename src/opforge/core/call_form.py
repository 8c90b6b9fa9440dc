"""The form of one call: which of an operator's optional inputs it is given.

Whoever has a call at hand works on the operator in the form of that call (`formed`): its inputs are the tensors that
are there, one by one, and its functions take just those. `arguments` gives what a kernel's function takes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from opforge.core.operator import Law, Operator, ScalarValue


def formed(operator: Operator, names: Mapping[str, Any]) -> Operator:
    """The operator as a call with these parameters (and axes) has it: inputs that are not given (`has_NAME` is False)
    are left out; reference, tolerance and laws take tensors and parameters without them. The operator itself where
    calls have one form only.
    """
    whole = operator.whole
    if not whole.presence:
        return operator
    made = copy.copy(whole)

    def reference(*tensors: Any, **scalars: Any) -> Any:
        return whole.reference(*arguments(made, tensors), **declared(made, scalars))

    def named(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
        """A function of inputs by name, which is given None for those that are not there."""
        if function is None:
            return None

        def asked(inputs: Mapping[str, Any], outputs: Mapping[str, Any], scalars: Any, *rest: Any) -> Any:
            values = arguments(made, [inputs[spec.name] for spec in made.inputs])
            given = dict(zip((spec.name for spec in whole.inputs), values, strict=True))
            return function(given, outputs, declared(made, scalars), *rest)

        return asked

    tolerance = whole.tolerance
    changes = {
        "inputs": tuple(spec for spec in whole.inputs if names.get(f"has_{spec.name}", True)),
        "written_as": whole,
        "reference": reference,
        "tolerance": replace(
            tolerance,
            magnitude=named(tolerance.magnitude),
            rounded=named(tolerance.rounded),
            errors=named(tolerance.errors),
        ),
        "laws": tuple(Law(name=law.name, about=law.about, holds=_known(named(law.holds))) for law in whole.laws),
    }
    for field, value in changes.items():
        object.__setattr__(made, field, value)  # frozen, and still being made
    return made


def arguments(operator: Operator, tensors: Sequence[Any]) -> list[Any]:
    """What functions take for the inputs of a definition, of the tensors of a call: None where nothing is given.

    operator   in the form of the call
    """
    given = dict(zip((spec.name for spec in operator.inputs), tensors, strict=True))
    return [given.get(spec.name) for spec in operator.whole.inputs]


def taken(operator: Operator, given: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, ScalarValue]]:
    """The tensors of a call, one by one, of its arguments; and the parameters that say which are not given."""
    if not operator.presence:
        return tuple(given), {}
    absent: dict[str, ScalarValue] = {
        f"has_{spec.name}": False
        for spec, value in zip(operator.inputs, given, strict=False)
        if spec.optional and value is None
    }
    kept = [value for spec, value in zip(operator.inputs, given, strict=False) if f"has_{spec.name}" not in absent]
    return tuple(kept), absent


def declared(operator: Operator, scalars: Mapping[str, ScalarValue]) -> dict[str, ScalarValue]:
    """The parameters that a definition declares, without those that say what is given."""
    names = {scalar.name for scalar in operator.presence}
    return {name: value for name, value in scalars.items() if name not in names}


def _known(function: Callable[..., Any] | None) -> Callable[..., Any]:
    assert function is not None
    return function
