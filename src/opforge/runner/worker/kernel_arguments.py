"""A kernel for the tensors of a call as they are there, one by one: its own function takes the arguments of the
definition, None where nothing is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from opforge.backends import Call, Kernel, backend
from opforge.core.definition.call_form import arguments, declared, formed
from opforge.core.definition.implementation import Implementation
from opforge.core.definition.operator import Operator, ScalarValue

Scalars = Mapping[str, ScalarValue]


def prepare(implementation: Implementation, call: Call) -> Kernel:
    """The kernel of an implementation for a call: it takes the inputs that the call gives, and every parameter. Raises
    whatever the backend raises.
    """
    kernel = backend(implementation.backend).prepare(implementation, call)
    operator = formed(call.operator, {**call.axes, **call.scalars})
    return kernel if operator is call.operator.whole else _of_form(kernel, operator)


def _of_form(kernel: Kernel, operator: Operator) -> Kernel:
    run, again, into, keep, resumed, function = (
        kernel.run,
        kernel.again,
        kernel.into,
        kernel.keep,
        kernel.resumed,
        kernel.function,
    )
    # what is prepared for one class of tensors takes them one by one, all of them
    straight = arguments(operator, operator.inputs) == list(operator.inputs)

    def writing(call: Callable[..., Any] | None) -> Any:
        return call and (
            lambda inputs, outputs, scalars: call(arguments(operator, inputs), outputs, declared(operator, scalars))
        )

    def kept(inputs: Sequence[Any], scalars: Scalars) -> Sequence[Any]:
        assert keep is not None
        return keep(arguments(operator, inputs), declared(operator, scalars))

    def one_by_one(*tensors: Any, **scalars: ScalarValue) -> Any:
        assert function is not None
        return function(*arguments(operator, tensors), **declared(operator, scalars))

    return replace(
        kernel,
        run=writing(run),
        again=writing(again) if straight else None,
        bound=kernel.bound if straight else None,
        into=writing(into),
        keep=keep and kept,
        resumed=writing(resumed),
        function=function and one_by_one,
    )
