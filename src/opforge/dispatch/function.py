"""An operator as an ordinary PyTorch function: eager, under autograd, and inside torch.compile.

In eager mode a call goes straight to the chosen kernel. Inside torch.compile it is the custom operator `opforge::NAME`,
which has a fake implementation (shapes and dtypes alone) and an autograd formula. Gradients are computed by the operator
that the definition names for them, itself a Function and so its best verified implementation here; where none is named,
and when a gradient is differentiated again, they come from differentiating the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from opforge.backends import Call, Kernel, backend
from opforge.core.errors import UsageError
from opforge.core.gradient import wire
from opforge.core.operator import Operator, ScalarValue
from opforge.core.shapes import collapsed_shape, full_shape
from opforge.dispatch.batching import Batching
from opforge.dispatch.choose import Choice, Chooser
from opforge.dispatch.gradients import Backward
from opforge.runner.launch import collapse, layout_of

_is_compiling = torch.compiler.is_compiling
_transforms_active = torch._C._are_functorch_transforms_active
_is_grad_enabled = torch.is_grad_enabled
_SCHEMA_TYPES = {bool: "bool", int: "int", float: "float", str: "str"}


class Function:
    """`Function(operator, chooser)(*tensors, **scalars)`: inputs in the operator's order; returns a tensor, or a tuple
    for several outputs. Raises UsageError when shapes or dtypes do not fit the operator."""

    def __init__(self, operator: Operator, chooser: Chooser) -> None:
        self.operator = operator
        self.chooser = chooser
        self.__name__ = operator.name
        self.__doc__ = operator.about
        self._prepared: dict[tuple[Any, ...], tuple[Any, Choice]] = {}
        self.backward = self._backward()
        self._custom = self._register()

    def __call__(self, *tensors: torch.Tensor, **scalars: ScalarValue) -> Any:
        # torch.vmap, torch.func.grad and torch.compile see the custom operator, and the rules registered for it
        if _is_compiling() or _transforms_active():
            return self._custom(*tensors, *self.operator.scalar_values(scalars).values())
        if _is_grad_enabled():
            for tensor in tensors:
                if tensor.requires_grad:
                    return self._custom(*tensors, *self.operator.scalar_values(scalars).values())
        # the key is built from what is cheap to ask of a tensor, here and not in a function of its own: it is a fourth of what a call costs on the host
        key: tuple[Any, ...]
        if len(tensors) == 2:
            a, b = tensors
            key = (a.shape, a.stride(), a.dtype, a.get_device(), b.shape, b.stride(), b.dtype, b.get_device())
        elif len(tensors) == 1:
            (a,) = tensors
            key = (a.shape, a.stride(), a.dtype, a.get_device())
        else:
            key = _key(tensors)
        if scalars:
            key = (*key, *scalars.items())
        found = self._prepared.get(key)
        if found is None:
            found = self._prepared[key] = self._prepare(tensors, scalars)
        return found[0](tensors)

    def why(self, *tensors: torch.Tensor, **scalars: ScalarValue) -> Choice:
        """Which implementation this call takes, and why."""
        return self._kernel(tensors, scalars)[1]

    def compute(self, tensors: Sequence[torch.Tensor], scalars: Mapping[str, ScalarValue]) -> Any:
        """The result, by the chosen implementation, without autograd."""
        return self._kernel(tensors, scalars)[0](tensors)

    def _kernel(self, tensors: Sequence[torch.Tensor], scalars: Mapping[str, ScalarValue]) -> tuple[Any, Choice]:
        key = (*_key(tensors), *scalars.items())
        found = self._prepared.get(key)
        if found is None:
            found = self._prepared[key] = self._prepare(tensors, scalars)
        return found

    def _prepare(self, tensors: Sequence[torch.Tensor], given: Mapping[str, ScalarValue]) -> tuple[Any, Choice]:
        operator = self.operator
        if len(tensors) != len(operator.inputs):
            raise UsageError(f"{operator.name} takes {len(operator.inputs)} tensors ({', '.join(spec.name for spec in operator.inputs)}), not {len(tensors)}.")
        scalars = operator.scalar_values(given)
        axes = operator.bind({spec.name: tuple(tensor.shape) for spec, tensor in zip(operator.inputs, tensors, strict=True)})
        dtype = self._dtype(tensors)
        violated = operator.violated(axes, dtype, scalars)
        if violated is not None:
            raise UsageError(f"{operator.name}: {violated.name} does not hold ({violated.expression}): {violated.about}.")
        device = tensors[0].device
        flat = [collapse(tensor, spec.shape, axes) for spec, tensor in zip(operator.inputs, tensors, strict=True)]
        layouts = [layout_of(item) if isinstance(item, torch.Tensor) else "strided" for item in flat]
        collapsible = all(isinstance(item, torch.Tensor) for item in flat)
        choice = self.chooser.choose(operator, axes, dtype, scalars, device.type, layouts if collapsible else [*layouts, "not collapsible"])
        call = Call(operator=operator, axes=axes, dtype=dtype, scalars=scalars, config=choice.config, device=device.type)
        kernel = backend(choice.implementation.backend).prepare(choice.implementation, call)
        if kernel.allocates:
            return lambda tensors: kernel.run(tensors, (), scalars), choice
        shapes = [full_shape(spec.shape, axes) for spec in operator.outputs]
        flat_out = [collapsed_shape(spec.shape, axes) for spec in operator.outputs]
        flat_in = [tuple(item.shape) for item in flat if isinstance(item, torch.Tensor)]
        if choice.implementation.any_rank and all(layout == "contiguous" for layout in layouts):
            flat_in, flat_out = [tuple(tensor.shape) for tensor in tensors], shapes
        return _runner(kernel, tensors, flat_in, shapes, flat_out, [getattr(torch, spec.dtype_for(dtype)) for spec in operator.outputs], scalars), choice

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
        gradient = function_of(name, self.chooser)
        return Backward(operator=self.operator, wiring=wire(self.operator, gradient.operator), call=gradient._traceable)

    def _traceable(self, *tensors: torch.Tensor, **scalars: ScalarValue) -> Any:
        """A call that a tracer may be watching: whatever is not an ordinary tensor goes to the custom operator."""
        if all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in tensors):
            return self(*tensors, **scalars)
        return self._custom(*tensors, *self.operator.scalar_values(scalars).values())

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
            axes = operator.bind({spec.name: tuple(tensor.shape) for spec, tensor in zip(operator.inputs, tensors, strict=True)})
            outputs = [tensors[0].new_empty(full_shape(spec.shape, axes), dtype=tensors[0].dtype if spec.dtype == "T" else getattr(torch, spec.dtype)) for spec in operator.outputs]
            return outputs[0] if len(outputs) == 1 else tuple(outputs)

        def remember(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.save_for_backward(*self.backward.kept(inputs[:count], output if isinstance(output, tuple) else (output,)))
            ctx.scalars = dict(zip(names, inputs[count:], strict=True))

        def backward(ctx: Any, *gradients: Any) -> Any:
            found = self.backward(ctx.saved_tensors, gradients, ctx.scalars, ctx.needs_input_grad)
            return (*found, *(None for _ in names))

        custom = torch.library.custom_op(f"opforge::{operator.name}", real, mutates_args=(), schema=schema)
        custom.register_fake(fake)
        custom.register_autograd(backward, setup_context=remember)
        custom.register_vmap(Batching(operator=operator, call=custom))
        return custom


def _key(tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    return tuple([part for tensor in tensors for part in (tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device())])


def function_of(name: str, chooser: Chooser) -> Function:
    """The operator of that name as a function; one for each chooser, because it registers a custom operator of that name."""
    if name not in chooser.functions:
        chooser.functions[name] = Function(chooser.registry.operator(name), chooser)
    found: Function = chooser.functions[name]
    return found


def _runner(
    kernel: Kernel,
    tensors: Sequence[torch.Tensor],
    flat_in: Sequence[tuple[int, ...]],
    shapes: Sequence[tuple[int, ...]],
    flat_out: Sequence[tuple[int, ...]],
    dtypes: Sequence[torch.dtype],
    scalars: Mapping[str, ScalarValue],
) -> Any:
    """A function of tensors like these that allocates outputs and runs the kernel. What need not be done is left out."""
    run = kernel.again or kernel.run
    makers = [_maker(tensors, shape, kind) for shape, kind in zip(shapes, dtypes, strict=True)]

    def finished(outputs: Sequence[torch.Tensor]) -> Any:
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    if all(0 in shape for shape in shapes):
        return lambda tensors: finished([make(tensors) for make in makers])
    views_in = [place for place, (tensor, shape) in enumerate(zip(tensors, flat_in, strict=True)) if tuple(tensor.shape) != shape]
    views_out = [place for place, (shape, flat) in enumerate(zip(shapes, flat_out, strict=True)) if shape != flat]
    if not views_in and not views_out and len(shapes) == 1:
        (make,) = makers

        def straight(tensors: Sequence[torch.Tensor]) -> Any:
            output = make(tensors)
            run(tensors, (output,), scalars)
            return output

        return straight

    def general(tensors: Sequence[torch.Tensor]) -> Any:
        outputs = [make(tensors) for make in makers]
        given, written = list(tensors), list(outputs)
        for place in views_in:
            given[place] = given[place].view(flat_in[place])
        for place in views_out:
            written[place] = written[place].view(flat_out[place])
        run(given, written, scalars)
        return finished(outputs)

    return general


def _maker(tensors: Sequence[torch.Tensor], shape: tuple[int, ...], kind: torch.dtype) -> Callable[[Sequence[torch.Tensor]], torch.Tensor]:
    """A function of tensors like these that allocates one output: like one of the inputs where that is right, which costs half."""
    for place, tensor in enumerate(tensors):
        if tuple(tensor.shape) == shape and tensor.dtype == kind and tensor.is_contiguous():
            return lambda tensors: torch.empty_like(tensors[place])
    return lambda tensors: tensors[0].new_empty(shape, dtype=kind)
