"""A prepared call: a function of tensors of one class (types, shapes, strides, dtype, device) that allocates outputs
and runs one kernel.

Whatever can be decided once for the class is decided here: a call through the public API is a look-up and one of these,
and so is what is timed on the terms of a caller (core.evidence.timing_terms.CALL).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from opforge.backends import Kernel, torch_private
from opforge.core.definition.implementation import Implementation
from opforge.core.definition.operator import Operator, ScalarValue
from opforge.core.definition.shapes import Axes, collapsed_shape, full_shape

PreparedFunction = Callable[[Sequence[torch.Tensor]], Any]


class PreparedCall(NamedTuple):
    """A call of one class.

    run     takes the inputs, returns the output or outputs
    makers  each makes one of the outputs of inputs like these; none of a kernel that allocates
    quick   makes the one output of inputs like these, and `bound` (see backends.Kernel), which finds out itself whether
            tensors are of the class: a caller who has both need not ask. None where there is no such way
    direct  a function of the inputs one by one, and what it is given by name: `run` without a look at autocast, of
            PyTorch's own functions. None where there is no such way
    bound   `bound` of inputs and of what `makers` make, however many; None where there is no such way
    """

    run: PreparedFunction
    quick: tuple[PreparedFunction, Callable[..., bool]] | None = None
    makers: Sequence[PreparedFunction] = ()
    direct: tuple[Callable[..., Any], dict[str, ScalarValue]] | None = None
    bound: Callable[..., bool] | None = None


_any_autocast = torch_private.any_autocast
_empty_like = torch.empty_like
_empty_on_cpu, _empty_on_gpu = torch_private.empty_strided_cpu, torch_private.empty_strided_cuda


def call_of(
    operator: Operator,
    implementation: Implementation,
    kernel: Kernel,
    tensors: Sequence[torch.Tensor],
    flat: Sequence[torch.Tensor],
    axes: Axes,
    dtype: str,
    scalars: Mapping[str, ScalarValue],
) -> PreparedCall:
    """The call of an implementation's kernel for tensors like these. `flat`: those with each variadic axis made one, as
    the kernel takes them.
    """
    shapes = [full_shape(spec.shape, axes) for spec in operator.fresh]
    flat_in, flat_out = (
        [tuple(item.shape) for item in flat],
        [collapsed_shape(spec.shape, axes) for spec in operator.fresh],
    )
    if implementation.any_rank and all(item.is_contiguous() for item in flat):
        flat_in, flat_out = [tuple(tensor.shape) for tensor in tensors], shapes
    return prepared(
        kernel,
        tensors,
        flat_in,
        shapes,
        flat_out,
        [getattr(torch, spec.dtype_for(dtype, scalars)) for spec in operator.fresh],
        scalars,
        empty=all(0 in full_shape(spec.shape, axes) for spec in operator.outputs),
    )


def prepared(
    kernel: Kernel,
    tensors: Sequence[torch.Tensor],
    flat_in: Sequence[tuple[int, ...]],
    shapes: Sequence[tuple[int, ...]],
    flat_out: Sequence[tuple[int, ...]],
    dtypes: Sequence[torch.dtype],
    scalars: Mapping[str, ScalarValue],
    empty: bool | None = None,
) -> PreparedCall:
    """The call for tensors like these. What need not be done is left out.

    flat_in, flat_out   the shapes in which the kernel takes inputs and outputs
    shapes, dtypes      those of the outputs that the call makes
    empty               whether there is nothing to compute; by default, whether none of these has an element
    """
    if kernel.allocates:
        direct = None if kernel.function is None else (kernel.function, dict(scalars))
        return PreparedCall(_allocating(kernel, scalars), direct=direct)
    makers = [_maker(tensors, shape, kind) for shape, kind in zip(shapes, dtypes, strict=True)]
    if all(0 in shape for shape in shapes) if empty is None else empty:
        return PreparedCall(lambda tensors: _finished([make(tensors) for make in makers]), makers=makers)
    run = _general(kernel, tensors, flat_in, shapes, flat_out, makers, scalars)
    if kernel.bound is None or not (kernel.strided or all(tensor.is_contiguous() for tensor in tensors)):
        return PreparedCall(run, makers=makers)
    bound = kernel.bound([*tensors, *(make(tensors) for make in makers)], [*flat_in, *flat_out])
    if bound is None:
        return PreparedCall(run, makers=makers)
    if len(shapes) != 1:
        return PreparedCall(_bound(bound, makers, run), makers=makers, bound=bound)
    return PreparedCall(_bound_one(bound, makers[0], run), (makers[0], bound), makers, bound=bound)


def _bound_one(bound: Callable[..., bool], make: PreparedFunction, otherwise: PreparedFunction) -> PreparedFunction:
    def call(tensors: Sequence[torch.Tensor]) -> Any:
        output = make(tensors)
        return output if bound(*tensors, output) else otherwise(tensors)

    return call


def _bound(
    bound: Callable[..., bool], makers: Sequence[PreparedFunction], otherwise: PreparedFunction
) -> PreparedFunction:
    def call(tensors: Sequence[torch.Tensor]) -> Any:
        outputs = [make(tensors) for make in makers]
        return _finished(outputs) if bound(*tensors, *outputs) else otherwise(tensors)

    return call


def _general(
    kernel: Kernel,
    tensors: Sequence[torch.Tensor],
    flat_in: Sequence[tuple[int, ...]],
    shapes: Sequence[tuple[int, ...]],
    flat_out: Sequence[tuple[int, ...]],
    makers: Sequence[PreparedFunction],
    scalars: Mapping[str, ScalarValue],
) -> PreparedFunction:
    """With a view for each tensor that the kernel takes in another shape."""
    run = kernel.again or kernel.run
    views_in = [
        place
        for place, (tensor, shape) in enumerate(zip(tensors, flat_in, strict=True))
        if tuple(tensor.shape) != shape
    ]
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
        return _finished(outputs)

    return general


def _allocating(kernel: Kernel, scalars: Mapping[str, ScalarValue]) -> PreparedFunction:
    def call(tensors: Sequence[torch.Tensor]) -> Any:
        if _any_autocast():
            # PyTorch would compute in another dtype than the one that is promised, and that this kernel has its Pass
            # for
            with torch.autocast(tensors[0].device.type, enabled=False):
                return kernel.run(tensors, (), scalars)
        return kernel.run(tensors, (), scalars)

    return call


def _finished(outputs: Sequence[torch.Tensor]) -> Any:
    return outputs[0] if len(outputs) == 1 else tuple(outputs) or None


@dataclass(frozen=True, slots=True)
class Fresh:
    """Allocates an output: `make(*given)`, whatever the inputs are."""

    make: Callable[..., torch.Tensor]
    given: tuple[Any, ...]

    def __call__(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.make(*self.given)


def _maker(tensors: Sequence[torch.Tensor], shape: tuple[int, ...], kind: torch.dtype) -> PreparedFunction:
    """A function of tensors like these that allocates one output, contiguous, in the way that costs least."""
    device, strides = tensors[0].device, torch.empty(shape, device="meta").stride()
    if device.type == "cpu" and _empty_on_cpu is not None:
        return Fresh(_empty_on_cpu, (shape, strides, kind))
    if device.type == "cuda" and _empty_on_gpu is not None:
        # it allocates on the GPU that is current
        fresh, here, current = _empty_on_gpu, device.index, torch_private.current_gpu
        return lambda tensors: (
            fresh(shape, strides, kind) if current() == here else tensors[0].new_empty(shape, dtype=kind)
        )
    for place, tensor in enumerate(tensors):
        if tuple(tensor.shape) == shape and tensor.dtype == kind and tensor.is_contiguous():
            return lambda tensors: _empty_like(tensors[place])
    return lambda tensors: tensors[0].new_empty(shape, dtype=kind)
