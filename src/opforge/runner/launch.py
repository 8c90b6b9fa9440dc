"""Binds an implementation to tensors. Bind, run and read are three things; a clock surrounds only the second."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opforge.backends import Call, Kernel, backend
from opforge.core.implementation import Config, Implementation, Rejected
from opforge.core.operator import Operator, ScalarValue
from opforge.core.shapes import Axes, collapsed_shape, full_shape
from opforge.runner.guards import ALL, Guards

LIBRARY = ("torch", "compile", "library")
"""Backends whose own work it is to call PyTorch's operations. They take tensors as they are."""


class ContractBroken(Exception):
    """What an implementation returned is not what the operator promises: type, shape, dtype, device or aliasing."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """An implementation tied to its inputs and outputs. `run()` is all that a clock surrounds; `read()` gives the
    outputs by name, checked, after the device has finished."""

    implementation: str
    run: Callable[[], object]
    read: Callable[[], Mapping[str, Any]]
    notes: tuple[str, ...] = ()


def layout_of(tensor: Any) -> str:
    """The least demanding of LAYOUTS that a collapsed tensor satisfies: "contiguous", "rows" or "strided"."""
    if tensor.is_contiguous():
        return "contiguous"
    if tensor.ndim >= 2 and tensor.stride(-1) == 1:
        return "rows"
    return "strided"


def collapse(tensor: Any, shape: str, axes: Axes) -> Any | Rejected:
    """The tensor with each variadic axis made one, sharing memory; Rejected when its strides do not allow that."""
    try:
        return tensor.view(collapsed_shape(shape, axes))
    except RuntimeError:
        return Rejected(f"strides {tuple(tensor.stride())} of shape {tuple(tensor.shape)} cannot be seen as {shape!r} without a copy; call .contiguous() first")


def bind(
    operator: Operator,
    implementation: Implementation,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    scalars: Mapping[str, ScalarValue],
    axes: Axes,
    dtype: str,
    config: Config | None = None,
    guards: Guards = ALL,
) -> Launch | Rejected:
    """A Launch of `implementation` on these tensors, or why it does not take them.

    inputs, outputs   tensors by name, in the operator's shapes; outputs are written (NaN before)
    Raises whatever the backend raises while compiling.
    """
    outside = _outside(operator, implementation, scalars, axes, dtype)
    if outside is not None:
        return outside
    first = next(iter(inputs.values()))
    chosen = implementation.default if config is None else config
    call = Call(operator=operator, axes=axes, dtype=dtype, scalars=scalars, config=chosen, device=first.device.type)
    kernel: Kernel = backend(implementation.backend).prepare(implementation, call)
    ordered_inputs = [inputs[spec.name] for spec in operator.inputs]
    ordered_outputs = [outputs[spec.name] for spec in operator.outputs]
    if kernel.allocates:
        return _bind_allocating(operator, implementation, kernel, ordered_inputs, scalars, axes, dtype, guards)
    flat = _flat(operator, implementation, (*ordered_inputs, *ordered_outputs), axes)
    if isinstance(flat, Rejected):
        return flat
    flat_inputs, flat_outputs = flat[: len(ordered_inputs)], flat[len(ordered_inputs) :]

    def read() -> Mapping[str, Any]:
        synchronize(first)
        return dict(zip((spec.name for spec in operator.outputs), ordered_outputs, strict=True))

    if all(tensor.numel() == 0 for tensor in ordered_outputs):
        # nothing to compute: no kernel has to know about empty grids
        return Launch(implementation=implementation.name, run=lambda: None, read=read, notes=kernel.notes)
    run = kernel.run
    return Launch(implementation=implementation.name, run=lambda: run(flat_inputs, flat_outputs, scalars), read=read, notes=kernel.notes)


def refused(
    operator: Operator, implementation: Implementation, inputs: Mapping[str, Any], outputs: Mapping[str, Any], scalars: Mapping[str, ScalarValue], axes: Axes, dtype: str
) -> Rejected | None:
    """Why these tensors are not taken by what the operator and the implementation's file say, as `bind` would find; None when they are. The kernel is not asked."""
    outside = _outside(operator, implementation, scalars, axes, dtype)
    if outside is not None or implementation.backend in LIBRARY:
        return outside
    tensors = [inputs[spec.name] for spec in operator.inputs] + [outputs[spec.name] for spec in operator.outputs]
    flat = _flat(operator, implementation, tensors, axes)
    return flat if isinstance(flat, Rejected) else None


def _outside(operator: Operator, implementation: Implementation, scalars: Mapping[str, ScalarValue], axes: Axes, dtype: str) -> Rejected | None:
    violated = operator.violated(axes, dtype, scalars)
    if violated is not None:
        return Rejected(f"{violated.name}: {violated.about} ({violated.expression})")
    answer = implementation.accepts(axes, dtype, scalars)
    return answer if isinstance(answer, Rejected) else None


def _flat(operator: Operator, implementation: Implementation, tensors: Sequence[Any], axes: Axes) -> list[Any] | Rejected:
    """The tensors with their variadic axes collapsed, or why their layout is not taken."""
    flat: list[Any] = []
    for spec, tensor in zip((*operator.inputs, *operator.outputs), tensors, strict=True):
        collapsed = collapse(tensor, spec.shape, axes)
        if isinstance(collapsed, Rejected):
            return Rejected(f"{spec.name}: {collapsed.reason}")
        layout = layout_of(collapsed)
        if layout not in implementation.layouts and layout != "contiguous":
            return Rejected(
                f"{spec.name} is {layout} (strides {tuple(tensor.stride())}); {implementation.name} takes {', '.join(implementation.layouts)}. Call .contiguous() first"
            )
        flat.append(collapsed)
    return flat


def _bind_allocating(
    operator: Operator, implementation: Implementation, kernel: Kernel, inputs: Sequence[Any], scalars: Mapping[str, ScalarValue], axes: Axes, dtype: str, guards: Guards
) -> Launch:
    result: list[Any] = [None]

    def run() -> None:
        result[0] = kernel.run(inputs, (), scalars)

    def read() -> Mapping[str, Any]:
        synchronize(inputs[0])
        return check_returned(operator, implementation.name, result[0], inputs, axes, dtype, scalars, guards)

    return Launch(implementation=implementation.name, run=run, read=read, notes=kernel.notes)


def check_returned(
    operator: Operator, name: str, returned: Any, inputs: Sequence[Any], axes: Axes, dtype: str, scalars: Mapping[str, ScalarValue], guards: Guards = ALL
) -> dict[str, Any]:
    """What came back, by output name; raises ContractBroken when it is not what the operator promises."""
    import torch

    values = returned if isinstance(returned, tuple) else (returned,)
    if len(values) != len(operator.outputs):
        raise ContractBroken(f"{name} returned {len(values)} values; {operator.name} has {len(operator.outputs)} outputs")
    found: dict[str, Any] = {}
    storages = {tensor.untyped_storage().data_ptr() for tensor in inputs if tensor.numel()}
    for spec, value in zip(operator.outputs, values, strict=True):
        if guards.exact_type and type(value) is not torch.Tensor:
            raise ContractBroken(f"{name} returned a {type(value).__name__} for {spec.name}, not a torch.Tensor")
        shape = full_shape(spec.shape, axes)
        if guards.exact_shape and tuple(value.shape) != shape:
            raise ContractBroken(f"{name} returned {spec.name} with shape {tuple(value.shape)}; expected {shape}")
        wanted = getattr(torch, spec.dtype_for(dtype, scalars))
        if guards.exact_shape and value.dtype != wanted:
            raise ContractBroken(f"{name} returned {spec.name} as {value.dtype}; expected {wanted}")
        if value.device != inputs[0].device:
            raise ContractBroken(f"{name} returned {spec.name} on {value.device}; the inputs are on {inputs[0].device}")
        if guards.no_alias and value.numel() and value.untyped_storage().data_ptr() in storages:
            raise ContractBroken(f"{name} returned {spec.name} in the memory of an input; outputs must not alias inputs")
        found[spec.name] = value
    return found


def synchronize(tensor: Any) -> None:
    """Wait until the device of `tensor` has finished everything given to it."""
    if tensor.device.type != "cpu":
        import torch

        torch.accelerator.synchronize(tensor.device)
