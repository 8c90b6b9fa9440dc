"""The form of one call: which of an operator's optional inputs it is given, and how many tensors stand in its lists.

Whoever has a call at hand works on the operator in the form of that call (`formed`): its inputs and outputs are the
tensors that are there, one by one, and its functions take and return just those. `arguments` gives what a kernel's
function takes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from opforge.core.definition.operator import Law, Operator, ScalarValue, TensorSpec


def formed(operator: Operator, names: Mapping[str, Any]) -> Operator:
    """The operator as a call with these parameters and axes has it: inputs that are not given (`has_NAME` is False)
    are left out, and of a list each tensor stands by itself (`NAME_0`, `NAME_1`). Reference, tolerance and laws take
    tensors and parameters of that form. The operator itself where calls have one form only.
    """
    whole = operator.whole
    if whole.one_form:
        return operator
    made = copy.copy(whole)

    def reference(*tensors: Any, **scalars: Any) -> Any:
        returned = whole.reference(*arguments(made, tensors), **declared(made, scalars))
        values = returned if isinstance(returned, tuple) else (returned,)
        if len(values) != len(whole.outputs):
            return returned  # whoever asks says so
        flat = [part for value in values for part in (value if isinstance(value, list | tuple) else (value,))]
        return tuple(flat) if len(flat) != 1 else flat[0]

    def named(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
        """A function of tensors by name, which is given None for those that are not there, and lists whole."""
        if function is None:
            return None

        def asked(inputs: Mapping[str, Any], outputs: Mapping[str, Any], scalars: Any, *rest: Any) -> Any:
            given, made_ones = (
                dict(
                    zip(
                        (spec.name for spec in specs),
                        _gathered(made, specs, [tensors[spec.name] for spec in flat]),
                        strict=True,
                    )
                )
                for specs, flat, tensors in (
                    (whole.inputs, made.inputs, inputs),
                    (whole.outputs, made.outputs, outputs),
                )
            )
            answer = function(given, made_ones, declared(made, scalars), *rest)
            return _apart(answer) if isinstance(answer, Mapping) else answer

        return asked

    tolerance = whole.tolerance
    changes = {
        "listed": {name: tuple(names[name]) for name in whole.list_axes},
        "inputs": tuple(_each(names, (spec for spec in whole.inputs if names.get(f"has_{spec.name}", True)))),
        "outputs": tuple(_each(names, whole.outputs)),
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


def _each(names: Mapping[str, Any], specs: Iterable[TensorSpec]) -> Iterable[TensorSpec]:
    """Every tensor by itself: of a list, each with the size that it has along the list's own axis."""
    for spec in specs:
        if spec.many is None:
            yield spec
            continue
        for place, size in enumerate(names[spec.many]):
            shape = " ".join(str(size) if token == spec.many else token for token in spec.shape.split())
            target = None if spec.overwrites is None else f"{spec.overwrites}_{place}"
            yield replace(spec, name=f"{spec.name}_{place}", shape=shape, many=None, overwrites=target)


def _gathered(operator: Operator, specs: Iterable[TensorSpec], tensors: Sequence[Any]) -> list[Any]:
    """For each of a definition's tensors what a call has: a tensor, None, or the tensors of a list."""
    left = list(tensors)
    found: list[Any] = []
    present = {spec.name for spec in operator.inputs}
    for spec in specs:
        if spec.many is not None:
            count = len(operator.listed[spec.many])
            found.append(left[:count])
            del left[:count]
        else:
            found.append(left.pop(0) if not spec.optional or spec.name in present else None)
    return found


def _apart(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What a function of a tolerance says of a list, said of each of its tensors."""
    said: dict[str, Any] = {}
    for name, value in answer.items():
        said |= (
            {f"{name}_{place}": part for place, part in enumerate(value)} if isinstance(value, list) else {name: value}
        )
    return said


def arguments(operator: Operator, tensors: Sequence[Any]) -> list[Any]:
    """What functions take for the inputs of a definition, of the tensors of a call: None where nothing is given, a list
    where there are many.

    operator   in the form of the call
    """
    return list(tensors) if operator.one_form else _gathered(operator, operator.whole.inputs, tensors)


def taken(operator: Operator, given: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The tensors of a call, one by one, of its arguments; and what tells its form: the parameters that say which are
    not given, and the sizes of its lists.
    """
    if operator.one_form:
        return tuple(given), {}
    flat: list[Any] = []
    form: dict[str, Any] = {}
    for spec, value in zip(operator.inputs, given, strict=False):
        if spec.many is not None:
            place = spec.shape.split().index(spec.many)
            flat += value
            form.setdefault(spec.many, tuple([int(tensor.shape[place]) for tensor in value]))
        elif spec.optional and value is None:
            form[f"has_{spec.name}"] = False
        else:
            flat.append(value)
    return tuple(flat), form


def declared(operator: Operator, scalars: Mapping[str, Any]) -> dict[str, ScalarValue]:
    """The parameters that a definition declares, without what tells the form of a call."""
    names = {*(scalar.name for scalar in operator.presence), *operator.list_axes}
    return {name: value for name, value in scalars.items() if name not in names}


def layouts_of(operator: Operator, names: Mapping[str, Any], layout: str) -> dict[str, str]:
    """The word of a layout for each tensor that a call is given: one for all, or one for each input and its list."""
    words = layout.split()
    whole = operator.whole
    said = dict(zip((spec.name for spec in whole.inputs), words, strict=False)) if len(words) > 1 else {}
    return {
        tensor.name: said.get(spec.name, words[0])
        for spec in whole.inputs
        if names.get(f"has_{spec.name}", True)
        for tensor in _each(names, (spec,))
    }


def _known(function: Callable[..., Any] | None) -> Callable[..., Any]:
    assert function is not None
    return function
