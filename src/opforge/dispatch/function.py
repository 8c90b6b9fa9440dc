"""An operator as an ordinary PyTorch function: eager, under autograd, and inside torch.compile.

In eager mode a call goes straight to the chosen kernel, and stands in PyTorch's graph where a gradient is wanted. Whatever watches or
transforms calls (torch.compile, torch.vmap, torch.func, dispatch modes, tensor subclasses, torch.jit.trace) sees the custom operator
`opforge::NAME`, which has a fake implementation (shapes and dtypes alone), an autograd formula and a rule for vmap. Gradients are
computed by the operator that the definition names for them, itself a Function and so its best verified implementation here; where none
is named, and when a gradient is differentiated again, they come from differentiating the reference. Forward-mode differentiation and
the transforms of torch.func that differentiate follow the reference too.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch.autograd import forward_ad

from opforge.backends import Call, backend
from opforge.core.errors import UsageError
from opforge.core.gradient import wire
from opforge.core.operator import Operator, ScalarValue
from opforge.core.shapes import Axes, collapsed_shape, full_shape
from opforge.dispatch.batching import Batching
from opforge.dispatch.choose import Choice, Chooser
from opforge.dispatch.gradients import Backward, Tracked, by_reference, come_back, remember
from opforge.dispatch.prepared import Prepared, Run, prepared
from opforge.runner.launch import collapse, layout_of

_is_compiling = torch.compiler.is_compiling
_transforms_active = torch._C._are_functorch_transforms_active
_dispatch_modes = torch._C._len_torch_dispatch_stack
_tracing = torch._C._get_tracing_state
_any_autocast = torch._C._is_any_autocast_enabled
_is_grad_enabled = torch.is_grad_enabled
_ORDINARY = (torch.Tensor, torch.nn.Parameter)
_AUTOCAST = (torch.float32, torch.float16, torch.bfloat16)
MOST = 1000
"""Classes of tensors and parameters that are kept, then all are forgotten: a seed or a length that is new at every step must not fill the memory."""
FIRST_TIMES = threading.RLock()
"""Held by what is done once for an operator or a class of tensors. Two threads that register one name leave PyTorch with a library that is gone, and
neither Python's parser (3.11) nor the store is made for two that begin at the same moment."""
_SCHEMA_TYPES = {bool: "bool", int: "int", float: "float", str: "str"}


class Function:
    """`Function(operator, chooser)(*tensors, **scalars)`: inputs in the operator's order; returns a tensor, or a tuple
    for several outputs. Raises UsageError when shapes or dtypes do not fit the operator.

    Under torch.autocast products of matrices are computed in autocast's dtype, and other operators that are given several
    floating-point dtypes in the widest of them; outputs have that dtype. Without it dtypes must agree.
    """

    def __init__(self, operator: Operator, chooser: Chooser) -> None:
        self.operator = operator
        self.chooser = chooser
        self.__name__ = operator.name
        self.__doc__ = operator.about
        # for each class of tensors and parameters: the kernel and why it is this one; and the call, which also knows of types and gradients
        self._prepared: dict[tuple[Any, ...], tuple[Prepared, Choice]] = {}
        self._calls: dict[tuple[Any, ...], Run] = {}
        # the last call for each shape of the first tensor (of products: for the shapes of all, which say how large the output is), where the
        # kernel finds out itself whether it is meant
        self._quick: dict[Any, tuple[Run, Callable[..., bool]]] = {}
        self._products = operator.unit == "matrix"
        self.backward = self._backward()
        self._custom = self._register()

    def __call__(self, *tensors: torch.Tensor, **scalars: ScalarValue) -> Any:
        if _is_compiling() or _transforms_active() or _dispatch_modes() or forward_ad._current_level >= 0 or _tracing():
            return self._watched(tensors, scalars)
        try:
            shape = tuple([tensor.shape for tensor in tensors]) if self._products else tensors[0].shape
            quick = self._quick.get((shape, *_apart(scalars)) if scalars else shape)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            raise self._misfit(tensors, scalars) from error
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
                    return output
        try:
            key = _key(tensors, scalars)
        except (AttributeError, RuntimeError) as error:
            raise self._misfit(tensors, scalars) from error
        call = self._calls.get(key)
        if call is None:
            return self._first(key, tensors, scalars)
        return call(tensors)

    def __reduce__(self) -> str:
        """By name, as functions are: a copy of a model calls this very one, and another process finds its own (`opforge.ops.NAME`)."""
        return self.__name__

    def why(self, *tensors: torch.Tensor, **scalars: ScalarValue) -> Choice:
        """Which implementation this call takes, and why."""
        return self._kernel(tensors, scalars)[1]

    def compute(self, tensors: Sequence[torch.Tensor], scalars: Mapping[str, ScalarValue]) -> Any:
        """The result, by the chosen implementation, without autograd."""
        return self._kernel(tensors, scalars)[0].run(tensors)

    def forget(self) -> None:
        """Prepare every class of tensors and parameters again at its next call."""
        for kept in (self._quick, self._calls, self._prepared):
            kept.clear()

    def _watched(self, tensors: Sequence[torch.Tensor], scalars: Mapping[str, ScalarValue]) -> Any:
        """A call that something watches or transforms."""
        if len(tensors) != len(self.operator.inputs) or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            raise self._misfit(tensors, scalars)
        tensors = self._cast(tensors)
        if forward_ad._current_level >= 0 or _differentiated():
            values = self._numbers(scalars)
            # the reference would broadcast, and promote dtypes
            self._fitting(tensors, values)
            return by_reference(self.operator, tensors, values)
        values = self.operator.scalar_values(scalars) if _is_compiling() else self._numbers(scalars)
        return self._custom(*tensors, *values.values())

    def _first(self, key: tuple[Any, ...], tensors: Sequence[torch.Tensor], scalars: Mapping[str, ScalarValue]) -> Any:
        """The first call of its class; the others find it prepared."""
        if any(isinstance(tensor, torch.fx.Proxy) for tensor in tensors):
            return self._custom(*tensors, *self.operator.scalar_values(scalars).values())
        if any(type(tensor) not in _ORDINARY or tensor.is_meta for tensor in tensors) and len({tensor.device for tensor in tensors}) == 1:
            return self._watched(tensors, scalars)
        cast = self._cast(tensors)
        if cast is not tensors:
            # not kept: autocast may be over at the next call, and this one refused
            return self(*cast, **scalars)
        found, _ = self._kernel(tensors, scalars)
        run = found.run
        call = self._tracked(run, self._numbers(scalars)) if any(tensor.requires_grad for tensor in tensors) else run
        self._calls[key] = call = self._autocast_aware(call, scalars)
        if found.quick is not None:
            make, bound = found.quick
            shape = tuple([tensor.shape for tensor in tensors]) if self._products else tensors[0].shape
            self._quick[(shape, *_apart(scalars)) if scalars else shape] = (make, _outside_autocast(bound) if self._products else bound)
        return call(tensors)

    def _kernel(self, tensors: Sequence[torch.Tensor], scalars: Mapping[str, ScalarValue]) -> tuple[Prepared, Choice]:
        try:
            key = (*(part for tensor in tensors for part in (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)), *_apart(scalars))
            found = self._prepared.get(key)
        except (AttributeError, RuntimeError, TypeError) as error:
            raise self._misfit(tensors, scalars) from error
        if found is not None:
            return found
        with FIRST_TIMES:
            found = self._prepared.get(key)
            if found is None:
                made, choice = self._prepare(tensors, scalars)
                if not all(tensor.is_contiguous() and tensor.numel() != 1 for tensor in tensors):
                    made = Prepared(self._without_negation(made.run, scalars))
                if len(self._prepared) >= MOST:
                    self.forget()
                found = self._prepared[key] = made, choice
        return found

    def _tracked(self, run: Run, scalars: Mapping[str, ScalarValue]) -> Run:
        backward = self.backward

        def tracked(tensors: Sequence[torch.Tensor]) -> Any:
            return Tracked.apply(backward, run, scalars, *tensors) if _is_grad_enabled() else run(tensors)

        return tracked

    def _autocast_aware(self, call: Run, given: Mapping[str, ScalarValue]) -> Run:
        """Products of matrices are what autocast is for; the others have one dtype already."""
        if self.operator.unit != "matrix":
            return call

        def aware(tensors: Sequence[torch.Tensor]) -> Any:
            if _any_autocast():
                cast = self._cast(tensors)
                if cast is not tensors:
                    return self(*cast, **given)
            return call(tensors)

        return aware

    def _without_negation(self, run: Run, given: Mapping[str, ScalarValue]) -> Run:
        """The imaginary part of a conjugate is a view whose elements PyTorch negates when it reads them; a kernel would not. Its stride is
        never that of neighbours, so tensors whose elements are need not be asked; a single element has any stride."""

        def asked(tensors: Sequence[torch.Tensor]) -> Any:
            if any(tensor.is_neg() for tensor in tensors):
                return self.compute([tensor.resolve_neg() for tensor in tensors], given)
            return run(tensors)

        return asked

    def _cast(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The tensors as autocast wants them; the same object where it has nothing to say."""
        if not tensors or tensors[0].is_meta or not torch.is_autocast_enabled(tensors[0].device.type):
            return tensors
        operator = self.operator
        joined = [spec.dtype == "T" for spec in operator.inputs]
        kinds = [tensor.dtype for tensor, own in zip(tensors, joined, strict=False) if own]
        if any(kind not in _AUTOCAST for kind in kinds):
            return tensors
        wanted = torch.get_autocast_dtype(tensors[0].device.type) if operator.unit == "matrix" else functools.reduce(torch.promote_types, kinds)
        if all(kind == wanted for kind in kinds):
            return tensors
        return tuple(tensor.to(wanted) if own else tensor for tensor, own in zip(tensors, joined, strict=False))

    def _prepare(self, tensors: Sequence[torch.Tensor], given: Mapping[str, ScalarValue]) -> tuple[Prepared, Choice]:
        operator = self.operator
        if len(tensors) != len(operator.inputs) or any(tensor.layout is not torch.strided for tensor in tensors):
            raise self._misfit(tensors, given)
        scalars = self._numbers(given)
        axes, dtype = self._fitting(tensors, scalars)
        device = tensors[0].device
        flat = [collapse(tensor, spec.shape, axes) for spec, tensor in zip(operator.inputs, tensors, strict=True)]
        layouts = [layout_of(item) if isinstance(item, torch.Tensor) else "strided" for item in flat]
        collapsible = all(isinstance(item, torch.Tensor) for item in flat)
        choice = self.chooser.choose(operator, axes, dtype, scalars, device.type, layouts if collapsible else [*layouts, "not collapsible"])
        call = Call(operator=operator, axes=axes, dtype=dtype, scalars=scalars, config=choice.config, device=device.type)
        kernel = backend(choice.implementation.backend).prepare(choice.implementation, call)
        shapes = [full_shape(spec.shape, axes) for spec in operator.outputs]
        flat_out = [collapsed_shape(spec.shape, axes) for spec in operator.outputs]
        flat_in = [tuple(item.shape) for item in flat if isinstance(item, torch.Tensor)]
        if choice.implementation.any_rank and all(layout == "contiguous" for layout in layouts):
            flat_in, flat_out = [tuple(tensor.shape) for tensor in tensors], shapes
        return prepared(kernel, tensors, flat_in, shapes, flat_out, [getattr(torch, spec.dtype_for(dtype, scalars)) for spec in operator.outputs], scalars), choice

    def _fitting(self, tensors: Sequence[torch.Tensor], scalars: Mapping[str, ScalarValue]) -> tuple[Axes, str]:
        """The axes and the dtype of a call; raises UsageError where shapes, dtypes, devices or parameters do not fit the operator."""
        operator = self.operator
        try:
            axes = operator.bind({spec.name: tuple(tensor.shape) for spec, tensor in zip(operator.inputs, tensors, strict=True)}, scalars)
        except UsageError as error:
            raise UsageError(f"{operator.name}: {error} It takes {_signature(operator)}; see: opforge show {operator.name}") from error
        dtype = self._dtype(tensors)
        for spec, tensor in zip(operator.inputs, tensors, strict=True):
            if spec.dtype != "T" and str(tensor.dtype).removeprefix("torch.") != spec.dtype_for(dtype, scalars):
                wanted = spec.dtype_for(dtype, scalars)
                raise UsageError(f"{operator.name} takes {spec.name} as {wanted}, not {tensor.dtype}. Convert it with {spec.name}.to(torch.{wanted}).")
        violated = operator.violated(axes, dtype, scalars)
        if violated is not None:
            raise UsageError(f"{operator.name}: {violated.name} does not hold ({violated.expression}): {violated.about}.")
        return axes, dtype

    def _dtype(self, tensors: Sequence[torch.Tensor]) -> str:
        operator = self.operator
        names = {str(tensor.dtype).removeprefix("torch.") for spec, tensor in zip(operator.inputs, tensors, strict=True) if spec.dtype == "T"}
        if len(names) != 1:
            raise UsageError(f"{operator.name} takes tensors of one dtype, not {', '.join(sorted(names))}. Convert them first, e.g. x.to(y.dtype).")
        (name,) = names
        if name not in operator.dtypes:
            raise UsageError(f"{operator.name} takes {', '.join(operator.dtypes)}, not {name}.")
        if len({tensor.device for tensor in tensors}) != 1:
            raise UsageError(f"{operator.name} takes tensors on one device, not {', '.join(sorted({str(tensor.device) for tensor in tensors}))}.")
        return name

    def _backward(self) -> Backward:
        name = self.operator.gradient
        if name is None:
            return Backward(operator=self.operator)
        if name not in self.chooser.registry.names():
            own = self.operator.name
            raise UsageError(f"{own} names {name!r} for its gradients, which is no operator here. Make it with: opforge new {name}. Or take `gradient` out of the op.py of {own}.")
        gradient = function_of(name, self.chooser)
        custom = lambda *tensors, **scalars: gradient._watched(tensors, scalars)  # noqa: E731
        return Backward(operator=self.operator, wiring=wire(self.operator, gradient.operator), call=gradient, custom=custom)

    def _misfit(self, tensors: Sequence[Any], scalars: Mapping[str, Any]) -> UsageError:
        """What is wrong with arguments that are too many, too few, or no tensors in plain memory; or with parameters that are no plain values."""
        operator = self.operator
        wanted = f"{operator.name} takes {len(operator.inputs)} tensors ({', '.join(spec.name for spec in operator.inputs)})"
        strange = [tensor for tensor in tensors if not isinstance(tensor, torch.Tensor)]
        if strange:
            by_name = f"; parameters go by name: {', '.join(f'{scalar.name}={scalar.default!r}' for scalar in operator.scalars)}" if operator.scalars else ""
            return UsageError(f"{wanted}, and {strange[0]!r:.60} is a {type(strange[0]).__name__}{by_name}. See: opforge show {operator.name}")
        if len(tensors) != len(operator.inputs):
            return UsageError(f"{wanted}, not {len(tensors)}. See: opforge show {operator.name}")
        for name, value in scalars.items():
            if not isinstance(value, bool | int | float | str):
                return UsageError(f"{operator.name}: {name} is a {type(value).__name__}; it takes a plain value. See: opforge show {operator.name}")
        layouts = {str(tensor.layout) for tensor in tensors} - {"torch.strided"}
        return UsageError(f"{wanted} in plain memory, not {', '.join(sorted(layouts)) or 'these'}. Convert them first, e.g. with x.to_dense() or x.to_padded_tensor(0.0).")

    def _numbers(self, given: Mapping[str, ScalarValue]) -> dict[str, ScalarValue]:
        """Every parameter's value, of the kind that its default has; raises UsageError for another kind."""
        values = self.operator.scalar_values(given)
        for scalar in self.operator.scalars:
            value, kind = values[scalar.name], type(scalar.default)
            if kind is float and isinstance(value, Real) and not isinstance(value, bool):
                values[scalar.name] = float(value)
            elif type(value) is not kind:
                raise UsageError(
                    f"{self.operator.name}: {scalar.name} is {value!r:.60}, a {type(value).__name__}; it takes a {kind.__name__}, e.g. {scalar.name}={scalar.default!r}."
                )
            elif kind is int and not -(2**63) <= int(value) < 2**63:
                raise UsageError(f"{self.operator.name}: {scalar.name} is {value}; it takes 64 bits with a sign. Leave its upper ones away: {scalar.name} % 2**63.")
        return values

    def _register(self) -> Any:
        operator = self.operator
        arguments = [f"Tensor {spec.name}" for spec in operator.inputs]
        arguments += [f"{_SCHEMA_TYPES[type(scalar.default)]} {scalar.name}" for scalar in operator.scalars]
        results = ", ".join("Tensor" for _ in operator.outputs)
        schema = f"({', '.join(arguments)}) -> {results if len(operator.outputs) == 1 else f'({results})'}"
        count = len(operator.inputs)
        names = [scalar.name for scalar in operator.scalars]

        def real(*arguments: Any) -> Any:
            return self.compute(arguments[:count], dict(zip(names, arguments[count:], strict=True)))

        def fake(*arguments: Any) -> Any:
            tensors = arguments[:count]
            scalars = dict(zip(names, arguments[count:], strict=True))
            axes = operator.bind({spec.name: tuple(tensor.shape) for spec, tensor in zip(operator.inputs, tensors, strict=True)}, scalars)
            kinds = [tensors[0].dtype if spec.dtype == "T" else getattr(torch, spec.dtype_for("", scalars)) for spec in operator.outputs]
            outputs = [tensors[0].new_empty(full_shape(spec.shape, axes), dtype=kind) for spec, kind in zip(operator.outputs, kinds, strict=True)]
            return outputs[0] if len(outputs) == 1 else tuple(outputs)

        def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            remember(ctx, self.backward, dict(zip(names, inputs[count:], strict=True)), inputs[:count], output)

        def backward(ctx: Any, *incoming: Any) -> Any:
            return (*come_back(ctx, incoming, ctx.needs_input_grad), *(None for _ in names))

        custom = torch.library.custom_op(f"opforge::{operator.name}", real, mutates_args=(), schema=schema)
        custom.register_fake(fake)
        custom.register_autograd(backward, setup_context=setup)
        custom.register_vmap(Batching(operator=operator, call=custom))
        return custom


def _key(tensors: Sequence[torch.Tensor], scalars: Mapping[str, ScalarValue]) -> tuple[Any, ...]:
    parts = [part for tensor in tensors for part in (type(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad)]
    return (*parts, *_apart(scalars))


def _apart(scalars: Mapping[str, ScalarValue]) -> Iterable[Any]:
    """Parameters by which calls are told apart. 0.0, -0.0, 0 and False are one key of a dictionary, and not one value of a parameter."""
    return scalars.items() if 0 not in scalars.values() else (repr(scalars),)


def _outside_autocast(bound: Callable[..., bool]) -> Callable[..., bool]:
    """What autocast would compute in another dtype is not computed."""
    return lambda *tensors: not _any_autocast() and bound(*tensors)


def _differentiated() -> bool:
    """Whether torch.func.grad, vjp, jvp or their like are at work: they cannot see into a custom operator."""
    functorch = torch._C._functorch
    return any(level.key() in (functorch.TransformType.Grad, functorch.TransformType.Jvp) for level in functorch.get_interpreter_stack() or ())


# asked by torch.compile while it traces, whose levels are those of the call
_differentiated._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _signature(operator: Operator) -> str:
    return ", ".join(f"{spec.name} ({spec.shape})" for spec in operator.inputs)


def function_of(name: str, chooser: Chooser) -> Function:
    """The operator of that name as a function; one for each chooser, because it registers a custom operator of that name."""
    with FIRST_TIMES:
        if name not in chooser.functions:
            chooser.functions[name] = Function(chooser.registry.operator(name), chooser)
        found: Function = chooser.functions[name]
    return found
