"""An operator as an ordinary PyTorch function: eager, under autograd, and inside torch.compile.

In eager mode a call goes straight to the chosen kernel, and stands in PyTorch's graph where a gradient is wanted.
Whatever watches or transforms calls (torch.compile, torch.vmap, torch.func, dispatch modes, tensor subclasses,
torch.jit.trace) sees the custom operator
`opforge::NAME`, which has a fake implementation (shapes and dtypes alone), an autograd formula and a rule for vmap.
Gradients are computed by the operator that the definition names for them, itself a Function and so its best verified
implementation here; where none is named, and when a gradient is differentiated again, they come from differentiating
the reference. Forward-mode differentiation and the transforms of torch.func that differentiate follow the reference
too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from opforge.backends import Call, torch_private
from opforge.backends.torch_private import forward_levels
from opforge.core.definition.call_form import arguments, declared, formed, taken
from opforge.core.definition.gradient import wire
from opforge.core.definition.operator import Operator, ScalarValue
from opforge.core.language.errors import UsageError
from opforge.dispatch.arguments import (
    arranged,
    check_overwritten,
    checked_scalars,
    fitting,
    misfit,
    overwritten_places,
)
from opforge.dispatch.autocast import cast, outside_autocast
from opforge.dispatch.call_classes import (
    apart,
    class_of,
    counted,
    manner_of_call,
    may_be_negated,
    without_autocast,
    without_negation,
)
from opforge.dispatch.call_table import (
    BOUND,
    BOUND_ANYWAY,
    MOST_TENSORS,
    NATIVE,
    NATIVE_ANYWAY,
    SPREAD,
    WHOLE,
    call_table,
    forward_of,
    native_call,
)
from opforge.dispatch.choose import Choice, Chooser
from opforge.dispatch.gradients import Backward, Tracked, apply_directly, in_form
from opforge.dispatch.reference import by_reference
from opforge.dispatch.registration import register
from opforge.dispatch.signature import signature_of, text_of
from opforge.runner.worker.kernel_arguments import prepare
from opforge.runner.worker.launch import collapse, layout_of
from opforge.runner.worker.prepared_call import Fresh, PreparedCall, PreparedFunction, call_of

_is_compiling = torch.compiler.is_compiling
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_transforms_active = torch_private.transforms_active
_dispatch_modes = torch_private.dispatch_modes
_tracing = torch_private.tracing_state
_any_autocast = torch_private.any_autocast
_differentiated = torch_private.differentiated
_is_grad_enabled = torch.is_grad_enabled
_ORDINARY = (torch.Tensor, torch.nn.Parameter)
MOST = 1000
"""Classes of tensors and parameters that are kept, then all are forgotten: a seed or a length that is new at every step
must not fill the memory.
"""
FIRST_TIMES = threading.RLock()
"""Held by what is done once for an operator or a class of tensors. Two threads that register one name leave PyTorch
with a library that is gone, and
neither Python's parser (3.11) nor the store is made for two that begin at the same moment."""


class Function:
    """`Function(operator, chooser)(*tensors, **scalars)`: inputs in the operator's order; returns a tensor, or a tuple
    for several outputs. Raises UsageError when shapes or dtypes do not fit the operator.

    Under torch.autocast products of matrices are computed in autocast's dtype, and other operators that are given
    several floating-point dtypes in the widest of them; outputs have that dtype. Without it dtypes must agree.

    An optional input may be None, left away at the end, or given by its name. A list of tensors is one argument.
    """

    def __init__(self, operator: Operator, chooser: Chooser) -> None:
        self.operator = operator
        self.chooser = chooser
        self.__name__ = operator.name
        self.__doc__ = text_of(operator)
        self.__signature__ = signature_of(operator)
        # for each class of tensors and parameters: the kernel and why it is this one; and the call, which also knows of
        # types and gradients
        self._prepared: dict[tuple[Any, ...], tuple[PreparedCall, Choice]] = {}
        self._calls: dict[tuple[Any, ...], PreparedFunction] = {}
        # the last call for each shape of the first tensor (of products: for the shapes of all, which say how large the
        # output is), where the kernel finds out itself whether it is meant
        self._quick: dict[Any, tuple[PreparedFunction, Callable[..., bool]]] = {}
        self._products = operator.unit == "matrix"
        # calls of one form have all inputs; of others the methods below are given the tensors that are there, and the
        # parameters that say which are not
        self._one_form = operator.one_form
        self._overwrites = bool(operator.overwritten)
        # `_call(tensors, scalars)`: from the first class of tensors on the table in C++, where there is one
        self._table: Any = None
        # it is asked by plain parameters, and sizes of lists are none
        self._table_asked = bool(operator.list_axes)
        self._call: Callable[..., Any] = self._looked_up
        self._backwards: dict[tuple[str, ...], Backward] = {}  # of each form of a call
        self.backward = self._backward()
        self._custom = self._register()

    def __call__(self, *tensors: torch.Tensor, **scalars: ScalarValue) -> Any:
        if not self._one_form:
            given, scalars = arranged(self.operator, tensors, scalars)
            if _is_compiling():
                given = tuple(cast(self.operator, given))
                values = self.operator.scalar_values(scalars)
                return self._custom(*given, *declared(self.operator, values).values())
            tensors, absent = taken(self.operator, given)
            scalars = {**scalars, **absent}
        # torch.compile reads True here, and traces no further
        if _is_dynamo_compiling():
            return self._watched(tensors, scalars)
        return self._call(tensors, scalars)

    def _looked_up(self, tensors: tuple[torch.Tensor, ...], scalars: dict[str, ScalarValue]) -> Any:
        """The call, looked up in Python: whatever the table in C++ does not have, or does not look at."""
        if (
            _is_compiling()
            or _transforms_active()
            or _dispatch_modes()
            or forward_levels._current_level >= 0
            or _tracing()
        ):
            return self._watched(tensors, scalars)
        if self._overwrites and _is_grad_enabled() and any(getattr(item, "requires_grad", False) for item in tensors):
            check_overwritten(self._form(scalars), tensors)
        try:
            shape = tuple([tensor.shape for tensor in tensors]) if self._products else tensors[0].shape
            quick = self._quick.get((shape, *apart(scalars)) if scalars else shape)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            raise misfit(self._form(scalars), tensors, scalars) from error
        if quick is not None:
            for tensor in tensors:
                if type(tensor) not in _ORDINARY or (tensor.requires_grad and _is_grad_enabled()):
                    break
            else:
                make, bound = quick
                try:
                    output = make(tensors)
                    done = bound(*tensors, output)
                except (BufferError, IndexError, RuntimeError):
                    # too few tensors, or one in no plain memory; it is asked again below, and answered as what it is
                    done = False
                if done:
                    if self._table is not None:
                        # under this state of PyTorch's (inference_mode, autocast) the table has not seen the class
                        self._keep(tensors, scalars)
                    return output
        try:
            key = class_of(tensors, scalars)
        except (AttributeError, RuntimeError) as error:
            raise misfit(self._form(scalars), tensors, scalars) from error
        call = self._calls.get(key)
        if call is None:
            return self._first(key, tensors, scalars)
        if self._table is not None:
            self._keep(tensors, scalars)
        return call(tensors)

    def __repr__(self) -> str:
        return f"opforge.ops.{self.__name__}{self.__signature__}"

    def __reduce__(self) -> str:
        """By name, as functions are: a copy of a model calls this very one, and another process finds its own
        (`opforge.ops.NAME`).
        """
        return self.__name__

    def why(self, *tensors: torch.Tensor, **scalars: ScalarValue) -> Choice:
        """Which implementation this call takes, and why."""
        if not self._one_form:
            given, scalars = arranged(self.operator, tensors, scalars)
            tensors, absent = taken(self.operator, given)
            scalars = {**scalars, **absent}
        return self._kernel(tensors, scalars)[1]

    def compute(self, tensors: Sequence[torch.Tensor], scalars: Mapping[str, ScalarValue]) -> Any:
        """The result, by the chosen implementation, without autograd."""
        return self._kernel(tensors, scalars)[0].run(tensors)

    def forget(self) -> None:
        """Prepare every class of tensors and parameters again at its next call."""
        for kept in (self._quick, self._calls, self._prepared):
            kept.clear()
        if self._table is not None:
            self._table.clear()

    def _form(self, scalars: Mapping[str, ScalarValue]) -> Operator:
        """The operator as a call with these parameters has it."""
        return self.operator if self._one_form else formed(self.operator, scalars)

    def _watched(self, tensors: Sequence[torch.Tensor], scalars: Mapping[str, ScalarValue]) -> Any:
        """A call that something watches or transforms."""
        operator = self._form(scalars)
        if len(tensors) != len(operator.inputs) or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            raise misfit(operator, tensors, scalars)
        tensors = cast(self._form(scalars), tensors)
        check_overwritten(operator, tensors)
        if self._overwrites and (forward_levels._current_level >= 0 or _differentiated()):
            raise UsageError(
                f"{self.operator.name} overwrites {', '.join(self.operator.overwritten)}, and has no gradient: "
                "torch.func cannot differentiate it."
            )
        if forward_levels._current_level >= 0 or _differentiated():
            values = checked_scalars(self.operator, scalars)
            # the reference would broadcast, and promote dtypes
            fitting(operator, tensors, values)
            return by_reference(operator, tensors, values)
        if _is_compiling():
            return self._custom(*tensors, *self.operator.scalar_values(scalars).values())
        values = checked_scalars(self.operator, scalars)
        if _transforms_active() and not _dispatch_modes():
            # said here, and not by an exception that has to come through PyTorch's dispatcher
            fitting(operator, tensors, values)
        if self._one_form:
            return self._custom(*tensors, *values.values())
        return self._custom(*arguments(operator, tensors), *declared(operator, values).values())

    def _first(self, key: tuple[Any, ...], tensors: Sequence[torch.Tensor], scalars: Mapping[str, ScalarValue]) -> Any:
        """The first call of its class; the others find it prepared."""
        if any(isinstance(tensor, torch.fx.Proxy) for tensor in tensors):
            values = self.operator.scalar_values(scalars)
            form = self._form(scalars)
            return self._custom(*arguments(form, tensors), *declared(form, values).values())
        if (
            any(type(tensor) not in _ORDINARY or tensor.is_meta for tensor in tensors)
            and len({tensor.device for tensor in tensors}) == 1
        ):
            return self._watched(tensors, scalars)
        converted = cast(self._form(scalars), tensors)
        if converted is not tensors:
            # not kept: autocast may be over at the next call, and this one refused
            return self._looked_up(tuple(converted), dict(scalars))
        found, _ = self._kernel(tensors, scalars)
        call = found.run
        if self.backward_of(scalars).wanted(tensors):
            call = self._tracked(call, checked_scalars(self.operator, scalars))
        elif any(tensor.requires_grad for tensor in tensors):
            # PyTorch's own functions would track them
            call = torch.no_grad()(call)
        self._calls[key] = call = self._autocast_aware(call, scalars)
        if found.quick is not None:
            make, bound = found.quick
            shape = tuple([tensor.shape for tensor in tensors]) if self._products else tensors[0].shape
            self._quick[(shape, *apart(scalars)) if scalars else shape] = (
                make,
                outside_autocast(bound) if self._products else bound,
            )
        if not self._table_asked:
            self._make_table()
        if self._table is not None:
            self._keep(tensors, scalars)
        return call(tensors)

    def _make_table(self) -> None:
        with FIRST_TIMES:
            if not self._table_asked:
                self._table = call_table(self._looked_up)
                self._table_asked = True
                if self._table is not None:
                    self._call = self._table

    def _keep(self, given: Sequence[torch.Tensor], named: Mapping[str, ScalarValue]) -> None:
        """Let the table make calls of this class, in the way that costs least: it has looked at types, transforms,
        autocast and gradients already.
        """
        tensors, scalars = tuple(given), dict(named)
        if len(tensors) > MOST_TENSORS:
            return
        prepared = self._kernel(tensors, scalars)[0]
        native = native_call(prepared)
        if _is_grad_enabled() and self.backward_of(scalars).wanted(tensors):
            if _any_autocast():
                return  # it would be refused
            run = native or (prepared.run if prepared.direct is None else without_autocast(*prepared.direct))
            values = checked_scalars(self.operator, scalars)
            tracked = apply_directly(self.backward_of(scalars), run, values, forward_of)
            self._table.keep(tensors, scalars, SPREAD, tracked, None, None)
        elif any(tensor.requires_grad for tensor in tensors):
            self._table.keep(tensors, scalars, WHOLE, torch.no_grad()(prepared.run), None, None)
        elif native is not None:
            self._table.keep(tensors, scalars, NATIVE if self._products else NATIVE_ANYWAY, native, None, None)
        elif prepared.direct is not None:
            self._table.keep(tensors, scalars, SPREAD, *prepared.direct, None)
        elif prepared.quick is not None:
            make, bound = prepared.quick
            fresh, from_what = (make.make, make.given) if isinstance(make, Fresh) else (make, None)
            kind = BOUND if self._products else BOUND_ANYWAY
            self._table.keep(tensors, scalars, kind, bound, from_what, fresh)
        else:
            self._table.keep(tensors, scalars, WHOLE, prepared.run, None, None)

    def _kernel(
        self, tensors: Sequence[torch.Tensor], scalars: Mapping[str, ScalarValue]
    ) -> tuple[PreparedCall, Choice]:
        try:
            key = (
                *(part for tensor in tensors for part in (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)),
                *apart(scalars),
            )
            found = self._prepared.get(key)
        except (AttributeError, RuntimeError, TypeError) as error:
            raise misfit(self._form(scalars), tensors, scalars) from error
        if found is not None:
            return found
        with FIRST_TIMES:
            found = self._prepared.get(key)
            if found is None:
                made, choice = self._prepare(tensors, scalars)
                if any(may_be_negated(tensor) for tensor in tensors):
                    # PyTorch's own functions read the sign themselves
                    places = overwritten_places(self._form(scalars))
                    plain = without_negation(made.run, lambda given: self.compute(given, scalars), places)
                    made = PreparedCall(plain, direct=made.direct)
                if self._overwrites:
                    made = PreparedCall(counted(made.run, overwritten_places(self._form(scalars))))
                if len(self._prepared) >= MOST:
                    self.forget()
                found = self._prepared[key] = made, choice
        return found

    def _tracked(self, run: PreparedFunction, scalars: Mapping[str, ScalarValue]) -> PreparedFunction:
        backward = self.backward_of(scalars)

        def tracked(tensors: Sequence[torch.Tensor]) -> Any:
            return Tracked.apply(backward, run, scalars, *tensors) if _is_grad_enabled() else run(tensors)

        return tracked

    def _autocast_aware(self, call: PreparedFunction, given: Mapping[str, ScalarValue]) -> PreparedFunction:
        """Products of matrices are what autocast is for; the others have one dtype already."""
        if self.operator.unit != "matrix":
            return call

        def aware(tensors: Sequence[torch.Tensor]) -> Any:
            if _any_autocast():
                converted = cast(self._form(given), tensors)
                if converted is not tensors:
                    return self._looked_up(tuple(converted), dict(given))
            return call(tensors)

        return aware

    def _prepare(
        self, tensors: Sequence[torch.Tensor], given: Mapping[str, ScalarValue]
    ) -> tuple[PreparedCall, Choice]:
        operator = self._form(given)
        if len(tensors) != len(operator.inputs) or any(tensor.layout is not torch.strided for tensor in tensors):
            raise misfit(operator, tensors, given)
        scalars = checked_scalars(operator, given)
        axes, dtype = fitting(operator, tensors, scalars)
        check_overwritten(operator, tensors)
        device = tensors[0].device
        flat = [collapse(tensor, spec.shape, axes) for spec, tensor in zip(operator.inputs, tensors, strict=True)]
        layouts = [layout_of(item) if isinstance(item, torch.Tensor) else "strided" for item in flat]
        collapsible = all(isinstance(item, torch.Tensor) for item in flat)
        choice = self.chooser.choose(
            operator,
            axes,
            dtype,
            scalars,
            device.type,
            layouts if collapsible else [*layouts, "not collapsible"],
            manner_of_call(flat),
        )
        call = Call(
            operator=operator, axes=axes, dtype=dtype, scalars=scalars, config=choice.config, device=device.type
        )
        kernel = prepare(choice.implementation, call)
        return call_of(
            operator,
            choice.implementation,
            kernel,
            tensors,
            [item for item in flat if isinstance(item, torch.Tensor)],
            axes,
            dtype,
            scalars,
        ), choice

    def backward_of(self, scalars: Mapping[str, ScalarValue]) -> Backward:
        """The backward pass of a call with these parameters."""
        return self.backward if self._one_form else in_form(self.backward, self._form(scalars), self._backwards)

    def _backward(self) -> Backward:
        if self.operator.gradient is None:
            return Backward(operator=self.operator)
        first, *further = (self._by(name) for name in (self.operator.gradient, *self.operator.further_gradients))
        return replace(first, further=tuple(further))

    def _by(self, name: str) -> Backward:
        """The backward pass by the operator of that name."""
        if name not in self.chooser.registry.names():
            own = self.operator.name
            raise UsageError(
                f"{own} names {name!r} for its gradients, which is no operator here. Make it with: opforge new "
                f"{name}. Or take it out of the op.py of {own}."
            )
        gradient = function_of(name, self.chooser)
        custom = lambda *tensors, **scalars: gradient._watched(tensors, scalars)  # noqa: E731
        return Backward(
            operator=self.operator, wiring=wire(self.operator, gradient.operator), call=gradient, custom=custom
        )

    def _register(self) -> Any:
        return register(self.operator, lambda: self).custom


def function_of(name: str, chooser: Chooser) -> Function:
    """The operator of that name as a function; one for each chooser, because it registers a custom operator of that
    name.
    """
    with FIRST_TIMES:
        if name not in chooser.functions:
            chooser.functions[name] = Function(chooser.registry.operator(name), chooser)
        found: Function = chooser.functions[name]
    return found
