"""An operator as an ordinary PyTorch function: eager, under autograd, and inside torch.compile.

In eager mode a call goes straight to the chosen kernel. Inside torch.compile it is the custom operator `opforge::NAME`,
which has a fake implementation (shapes and dtypes alone) and an autograd formula. Gradients come from differentiating
the operator's reference, in float32 at the least, since no implementation brings a backward of its own yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from opforge.backends import Call, Kernel, backend
from opforge.core.errors import UsageError
from opforge.core.operator import Operator, ScalarValue
from opforge.core.shapes import collapsed_shape, full_shape
from opforge.dispatch.choose import Choice, Chooser
from opforge.runner.launch import collapse, layout_of

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
        self._custom = self._register()

    def __call__(self, *tensors: torch.Tensor, **scalars: ScalarValue) -> Any:
        if torch.compiler.is_compiling():
            return self._custom(*tensors, *self.operator.scalar_values(scalars).values())
        if torch.is_grad_enabled():
            for tensor in tensors:
                if tensor.requires_grad:
                    return self._custom(*tensors, *self.operator.scalar_values(scalars).values())
        return self.compute(tensors, scalars)

    def why(self, *tensors: torch.Tensor, **scalars: ScalarValue) -> Choice:
        """Which implementation this call takes, and why."""
        return self._kernel(tensors, scalars)[1]

    def compute(self, tensors: Sequence[torch.Tensor], scalars: Mapping[str, ScalarValue]) -> Any:
        """The result, by the chosen implementation, without autograd."""
        return self._kernel(tensors, scalars)[0](tensors)

    def _kernel(self, tensors: Sequence[torch.Tensor], scalars: Mapping[str, ScalarValue]) -> tuple[Any, Choice]:
        # built from what is cheap to ask of a tensor: this line is most of what a call costs on the host
        key: tuple[Any, ...] = tuple([(tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device()) for tensor in tensors])
        if scalars:
            key = (*key, *scalars.items())
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
            ctx.save_for_backward(*inputs[:count])
            ctx.scalars = dict(zip(names, inputs[count:], strict=True))

        def backward(ctx: Any, *gradients: Any) -> Any:
            found = differentiate(operator, ctx.saved_tensors, gradients, ctx.scalars, ctx.needs_input_grad)
            return (*found, *(None for _ in names))

        custom = torch.library.custom_op(f"opforge::{operator.name}", real, mutates_args=(), schema=schema)
        custom.register_fake(fake)
        custom.register_autograd(backward, setup_context=remember)
        return custom


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
    device = tensors[0].device
    run = kernel.run
    reshaped = any(tuple(tensor.shape) != shape for tensor, shape in zip(tensors, flat_in, strict=True)) or list(shapes) != list(flat_out)
    if all(0 in shape for shape in shapes):

        def nothing(tensors: Sequence[torch.Tensor]) -> Any:
            outputs = [torch.empty(shape, dtype=kind, device=device) for shape, kind in zip(shapes, dtypes, strict=True)]
            return outputs[0] if len(outputs) == 1 else tuple(outputs)

        return nothing
    if not reshaped and len(shapes) == 1:
        (shape,), (kind,) = shapes, dtypes

        def straight(tensors: Sequence[torch.Tensor]) -> Any:
            output = torch.empty(shape, dtype=kind, device=device)
            run(tensors, (output,), scalars)
            return output

        return straight

    def general(tensors: Sequence[torch.Tensor]) -> Any:
        outputs = [torch.empty(shape, dtype=kind, device=device) for shape, kind in zip(shapes, dtypes, strict=True)]
        run([tensor.view(shape) for tensor, shape in zip(tensors, flat_in, strict=True)], [output.view(shape) for output, shape in zip(outputs, flat_out, strict=True)], scalars)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return general


def differentiate(
    operator: Operator, tensors: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None], scalars: Mapping[str, ScalarValue], needed: Sequence[bool]
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of the inputs, by differentiating the reference in float32 (float64 stays float64).

    gradients   one for each output, in the outputs' shapes; None counts as zero
    needed      which inputs need one; the others get None
    """
    with torch.enable_grad():
        wide = [tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32)).requires_grad_(need) for tensor, need in zip(tensors, needed, strict=False)]
        returned = operator.reference(*wide, **scalars)
        outputs = returned if isinstance(returned, tuple) else (returned,)
        pairs = [(output, gradient.to(output.dtype)) for output, gradient in zip(outputs, gradients, strict=True) if gradient is not None]
        leaves = [tensor for tensor in wide if tensor.requires_grad]
        found = torch.autograd.grad([output for output, _ in pairs], leaves, [gradient for _, gradient in pairs], allow_unused=True)
    given = iter(found)
    result: list[torch.Tensor | None] = []
    for original, tensor in zip(tensors, wide, strict=True):
        gradient = next(given) if tensor.requires_grad else None
        result.append(None if gradient is None else gradient.to(original.dtype))
    return tuple(result)
