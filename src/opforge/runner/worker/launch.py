"""Binds an implementation to tensors. Bind, run and read are three things; a clock surrounds only the second."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from opforge.backends import Call, Kernel
from opforge.core.definition.call_form import formed
from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.implementation import Config, Implementation, Rejected
from opforge.core.definition.operator import Operator, ScalarValue
from opforge.core.definition.shapes import Axes, collapsed_shape, full_shape
from opforge.core.evidence.timing_terms import CALL, OUT
from opforge.core.language import spans
from opforge.runner.walls.guards import ALL, Guards
from opforge.runner.worker.kernel_arguments import prepare

LIBRARY = ("torch", "compile", "library")
"""Backends whose own work it is to call PyTorch's operations. They take tensors as they are."""


POISON = 0xFF
"""What the memory that a result will be made in is filled with: NaN in every floating-point format used here."""


class ContractBroken(Exception):
    """What an implementation returned is not what the operator promises: type, shape, dtype, device or aliasing."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """An implementation tied to its inputs and outputs. `run()` is all that a clock surrounds; `read()` gives the
    outputs by name, checked, after the device has finished.

    terms         what is inside `run` (core.evidence.timing_terms): with CALL it makes its result, with OUT it writes
                  into a preallocated output
    other         the same kernel on the same tensors, on the other terms; None where there is no such way
    ready         called before `run` whenever the inputs have changed: what a gradient is left by the forward pass is
                  made again, and the memory that a result will be made in is filled with NaN as far as the allocator
                  gives it out again
    same          the same work where they have not changed: that memory gets what it holds
    made          the bytes of each result that a call on the terms CALL makes
    """

    implementation: str
    run: Callable[[], object]
    read: Callable[[], Mapping[str, Any]]
    notes: tuple[str, ...] = ()
    terms: str = OUT
    other: Callable[[], Launch] | None = None
    ready: Callable[[], object] = lambda: None
    same: Callable[[], object] = lambda: None
    made: tuple[int, ...] = ()

    def on(self, terms: str) -> Launch | None:
        """This launch on other terms; None where there is no such way."""
        return self if terms == self.terms else self.other() if self.other is not None else None


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
        return Rejected(
            f"strides {tuple(tensor.stride())} of shape {tuple(tensor.shape)} cannot be seen as {shape!r} without a "
            "copy; call .contiguous() first"
        )


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

    inputs, outputs   tensors by name, in the operator's shapes; outputs are written (NaN before). An output that
                      overwrites an input is the tensor of that input
    Raises whatever the backend raises while compiling.
    """
    outside = _outside(operator, implementation, scalars, axes, dtype)
    if outside is not None:
        return outside
    operator = formed(operator, {**axes, **scalars})
    first = next(iter(inputs.values()))
    chosen = implementation.default if config is None else config
    call = Call(operator=operator, axes=axes, dtype=dtype, scalars=scalars, config=chosen, device=first.device.type)
    with spans.span("prepare", implementation.name):
        kernel = prepare(implementation, call)
    ordered_inputs = [inputs[spec.name] for spec in operator.inputs]
    ordered_outputs = [outputs[spec.name] for spec in operator.fresh]
    if kernel.allocates:
        return _bind_allocating(
            operator, implementation, kernel, ordered_inputs, ordered_outputs, scalars, axes, dtype, guards
        )
    flat = _flat(operator, implementation, (*ordered_inputs, *ordered_outputs), axes)
    if isinstance(flat, Rejected):
        return flat
    flat_inputs, flat_outputs = flat[: len(ordered_inputs)], flat[len(ordered_inputs) :]

    def read() -> Mapping[str, Any]:
        synchronize(first)
        return results(operator, ordered_inputs, ordered_outputs)

    if all(tensor.numel() == 0 for tensor in outputs.values()):
        # nothing to compute: no kernel has to know about empty grids
        return Launch(implementation=implementation.name, run=lambda: None, read=read, notes=kernel.notes)
    run = kernel.run

    def as_call() -> Launch:
        import torch

        from opforge.runner.worker.prepared_call import call_of

        call = call_of(operator, implementation, kernel, ordered_inputs, flat_inputs, axes, dtype, scalars)
        launch = _returning(
            operator, implementation, lambda: call.run(ordered_inputs), ordered_inputs, scalars, axes, dtype, guards
        )

        def poisoned() -> None:
            for make in call.makers:
                # as many passes over that memory as `rewritten` makes: they leave a device's cache alike
                made = make(ordered_inputs)
                made.flatten().view(torch.uint8).bitwise_not_()
                made.untyped_storage().fill_(POISON)

        def rewritten() -> None:
            for make in call.makers:
                # in place: what is allocated besides would change which memory comes next
                held = make(ordered_inputs).flatten().view(torch.uint8)
                held.bitwise_not_().bitwise_not_()

        return replace(launch, ready=poisoned, same=rewritten, notes=kernel.notes)

    return Launch(
        implementation=implementation.name,
        run=lambda: run(flat_inputs, flat_outputs, scalars),
        read=read,
        notes=kernel.notes,
        other=as_call,
    )


def refused(
    operator: Operator,
    implementation: Implementation,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    scalars: Mapping[str, ScalarValue],
    axes: Axes,
    dtype: str,
) -> Rejected | None:
    """Why these tensors are not taken by what the operator and the implementation's file say, as `bind` would find;
    None when they are. The kernel is not asked.
    """
    outside = _outside(operator, implementation, scalars, axes, dtype)
    if outside is not None or implementation.backend in LIBRARY:
        return outside
    operator = formed(operator, {**axes, **scalars})
    tensors = [inputs[spec.name] for spec in operator.inputs] + [outputs[spec.name] for spec in operator.fresh]
    flat = _flat(operator, implementation, tensors, axes)
    return flat if isinstance(flat, Rejected) else None


def _outside(
    operator: Operator, implementation: Implementation, scalars: Mapping[str, ScalarValue], axes: Axes, dtype: str
) -> Rejected | None:
    violated = operator.violated(axes, dtype, scalars)
    if violated is not None:
        return Rejected(f"{violated.name}: {violated.about} ({violated.expression})")
    answer = implementation.accepts(axes, dtype, scalars)
    return answer if isinstance(answer, Rejected) else None


def _flat(
    operator: Operator, implementation: Implementation, tensors: Sequence[Any], axes: Axes
) -> list[Any] | Rejected:
    """The tensors with their variadic axes collapsed, or why their layout is not taken."""
    flat: list[Any] = []
    for spec, tensor in zip((*operator.inputs, *operator.fresh), tensors, strict=True):
        collapsed = collapse(tensor, spec.shape, axes)
        if isinstance(collapsed, Rejected):
            return Rejected(f"{spec.name}: {collapsed.reason}")
        layout = layout_of(collapsed)
        if layout not in implementation.layouts and layout != "contiguous":
            return Rejected(
                f"{spec.name} is {layout} (strides {tuple(tensor.stride())}); {implementation.name} takes "
                f"{', '.join(implementation.layouts)}. Call .contiguous() first"
            )
        flat.append(collapsed)
    return flat


def _bind_allocating(
    operator: Operator,
    implementation: Implementation,
    kernel: Kernel,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    scalars: Mapping[str, ScalarValue],
    axes: Axes,
    dtype: str,
    guards: Guards,
) -> Launch:
    kept: list[Any] = []
    keep, resumed, into = kernel.keep, kernel.resumed, kernel.into
    if keep is None or resumed is None:
        launch = _returning(
            operator, implementation, lambda: kernel.run(inputs, (), scalars), inputs, scalars, axes, dtype, guards
        )
    else:
        launch = _returning(
            operator, implementation, lambda: resumed(inputs, kept, scalars), inputs, scalars, axes, dtype, guards
        )

        def again() -> None:
            _renewed(kept, keep(inputs, scalars))

        launch = replace(launch, ready=again, same=again)

    def as_out() -> Launch:
        def read() -> Mapping[str, Any]:
            synchronize(inputs[0])
            return results(operator, inputs, outputs)

        assert into is not None
        return Launch(
            implementation=implementation.name,
            run=lambda: into(inputs, outputs, scalars),
            read=read,
            notes=kernel.notes,
        )

    return replace(launch, notes=kernel.notes, other=None if into is None else as_out)


def _returning(
    operator: Operator,
    implementation: Implementation,
    call: Callable[[], Any],
    inputs: Sequence[Any],
    scalars: Mapping[str, ScalarValue],
    axes: Axes,
    dtype: str,
    guards: Guards,
) -> Launch:
    """The Launch of a call that makes its result. The last one is held until the next is there, as `y = f(x)` in a loop
    does.
    """
    result: list[Any] = [None]

    def run() -> None:
        result[0] = call()

    def read() -> Mapping[str, Any]:
        synchronize(inputs[0])
        return check_returned(operator, implementation.name, result[0], inputs, axes, dtype, scalars, guards)

    made = tuple(
        math.prod(full_shape(spec.shape, axes)) * DTYPES[spec.dtype_for(dtype, scalars)].itemsize
        for spec in operator.fresh
    )
    return Launch(implementation=implementation.name, run=run, read=read, terms=CALL, made=made)


def results(operator: Operator, inputs: Sequence[Any], fresh: Sequence[Any]) -> dict[str, Any]:
    """Every output by name: those that a call makes, and the inputs that it has overwritten."""
    made = dict(zip((spec.name for spec in operator.fresh), fresh, strict=True))
    given = dict(zip((spec.name for spec in operator.inputs), inputs, strict=True))
    return {spec.name: given[spec.overwrites] if spec.overwrites else made[spec.name] for spec in operator.outputs}


def _renewed(kept: list[Any], fresh: Sequence[Any]) -> None:
    """Put what the forward pass leaves where the last of it lies: a captured call reads those addresses. What holds
    autograd's graph is replaced: nothing of it may be written, nor captured.
    """
    if kept and all(tensor.device.type != "cpu" and not tensor.requires_grad for tensor in fresh):
        for old, new in zip(kept, fresh, strict=True):
            old.copy_(new)
    else:
        kept[:] = fresh


def check_returned(
    operator: Operator,
    name: str,
    returned: Any,
    inputs: Sequence[Any],
    axes: Axes,
    dtype: str,
    scalars: Mapping[str, ScalarValue],
    guards: Guards = ALL,
) -> dict[str, Any]:
    """What came back, by output name; raises ContractBroken when it is not what the operator promises."""
    import torch

    values = () if returned is None and not operator.fresh else returned if isinstance(returned, tuple) else (returned,)
    if len(values) != len(operator.fresh):
        besides = f" besides what it overwrites ({', '.join(operator.overwritten)})" if operator.overwritten else ""
        raise ContractBroken(
            f"{name} returned {len(values)} values; {operator.name} has {len(operator.fresh)} outputs{besides}. Return "
            "one tensor for each of them, in their order"
        )
    storages = {tensor.untyped_storage().data_ptr() for tensor in inputs if tensor.numel()}
    for spec, value in zip(operator.fresh, values, strict=True):
        if guards.exact_type and type(value) is not torch.Tensor:
            raise ContractBroken(
                f"{name} returned a {type(value).__name__} for {spec.name}, not a torch.Tensor. Return what it computed"
            )
        shape = full_shape(spec.shape, axes)
        if guards.exact_shape and tuple(value.shape) != shape:
            raise ContractBroken(f"{name} returned {spec.name} with shape {tuple(value.shape)}; expected {shape}")
        wanted = getattr(torch, spec.dtype_for(dtype, scalars))
        if guards.exact_shape and value.dtype != wanted:
            raise ContractBroken(
                f"{name} returned {spec.name} as {value.dtype}; expected {wanted}. Convert it: {spec.name}.to({wanted})"
            )
        if value.device != inputs[0].device:
            raise ContractBroken(f"{name} returned {spec.name} on {value.device}; the inputs are on {inputs[0].device}")
        if guards.no_alias and value.numel() and value.untyped_storage().data_ptr() in storages:
            raise ContractBroken(
                f"{name} returned {spec.name} in the memory of an input; outputs must not alias inputs. Return a new "
                "tensor"
            )
    return results(operator, inputs, values)


def synchronize(tensor: Any) -> None:
    """Wait until the device of `tensor` has finished everything given to it."""
    if tensor.device.type != "cpu":
        import torch

        torch.accelerator.synchronize(tensor.device)
