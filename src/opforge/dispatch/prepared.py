"""A prepared call: a function of tensors of one class (types, shapes, strides, dtype, device) that allocates outputs and runs one kernel.

Whatever can be decided once for the class is decided here: a call through the front door is a look-up and one of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from opforge.backends import Kernel
from opforge.core.operator import ScalarValue

Run = Callable[[Sequence[torch.Tensor]], Any]


class Prepared(NamedTuple):
    """A call of one class.

    run     takes the inputs, returns the output or outputs
    quick   makes the one output of inputs like these, and `bound` (see backends.Kernel), which finds out itself whether tensors are of
            the class: a caller who has both need not ask. None where there is no such way
    """

    run: Run
    quick: tuple[Run, Callable[..., bool]] | None = None


_any_autocast = torch._C._is_any_autocast_enabled
_empty_like = torch.empty_like
# what Inductor's own programs allocate with, past the dispatcher: half of what torch.empty_like costs. Private, so its absence is no error
_guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
_empty_on_cpu, _empty_on_gpu = getattr(_guards, "_empty_strided_cpu", None), getattr(_guards, "_empty_strided_cuda", None)


def prepared(
    kernel: Kernel,
    tensors: Sequence[torch.Tensor],
    flat_in: Sequence[tuple[int, ...]],
    shapes: Sequence[tuple[int, ...]],
    flat_out: Sequence[tuple[int, ...]],
    dtypes: Sequence[torch.dtype],
    scalars: Mapping[str, ScalarValue],
) -> Prepared:
    """The call for tensors like these. What need not be done is left out.

    flat_in, flat_out   the shapes in which the kernel takes inputs and outputs
    shapes, dtypes      those of the outputs
    """
    if kernel.allocates:
        return Prepared(_allocating(kernel, scalars))
    makers = [_maker(tensors, shape, kind) for shape, kind in zip(shapes, dtypes, strict=True)]
    if all(0 in shape for shape in shapes):
        return Prepared(lambda tensors: _finished([make(tensors) for make in makers]))
    run = _general(kernel, tensors, flat_in, shapes, flat_out, makers, scalars)
    if kernel.bound is None or not all(tensor.is_contiguous() for tensor in tensors):
        return Prepared(run)
    bound = kernel.bound([*tensors, *(make(tensors) for make in makers)], [*flat_in, *flat_out])
    if bound is None:
        return Prepared(run)
    if len(shapes) > 1:
        return Prepared(_bound(bound, makers, run))
    return Prepared(_bound_one(bound, makers[0], run), (makers[0], bound))


def _bound_one(bound: Callable[..., bool], make: Run, otherwise: Run) -> Run:
    def call(tensors: Sequence[torch.Tensor]) -> Any:
        output = make(tensors)
        return output if bound(*tensors, output) else otherwise(tensors)

    return call


def _bound(bound: Callable[..., bool], makers: Sequence[Run], otherwise: Run) -> Run:
    def call(tensors: Sequence[torch.Tensor]) -> Any:
        outputs = tuple([make(tensors) for make in makers])
        return outputs if bound(*tensors, *outputs) else otherwise(tensors)

    return call


def _general(
    kernel: Kernel,
    tensors: Sequence[torch.Tensor],
    flat_in: Sequence[tuple[int, ...]],
    shapes: Sequence[tuple[int, ...]],
    flat_out: Sequence[tuple[int, ...]],
    makers: Sequence[Run],
    scalars: Mapping[str, ScalarValue],
) -> Run:
    """With a view for each tensor that the kernel takes in another shape."""
    run = kernel.again or kernel.run
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
        return _finished(outputs)

    return general


def _allocating(kernel: Kernel, scalars: Mapping[str, ScalarValue]) -> Run:
    def call(tensors: Sequence[torch.Tensor]) -> Any:
        if _any_autocast():
            # PyTorch would compute in another dtype than the one that is promised, and that this kernel has its Pass for
            with torch.autocast(tensors[0].device.type, enabled=False):
                return kernel.run(tensors, (), scalars)
        return kernel.run(tensors, (), scalars)

    return call


def _finished(outputs: Sequence[torch.Tensor]) -> Any:
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _maker(tensors: Sequence[torch.Tensor], shape: tuple[int, ...], kind: torch.dtype) -> Run:
    """A function of tensors like these that allocates one output, contiguous, in the way that costs least."""
    device, strides = tensors[0].device, torch.empty(shape, device="meta").stride()
    if device.type == "cpu" and _empty_on_cpu is not None:
        fresh = _empty_on_cpu
        return lambda tensors: fresh(shape, strides, kind)
    if device.type == "cuda" and _empty_on_gpu is not None:
        # it allocates on the GPU that is current
        fresh, here, current = _empty_on_gpu, device.index, torch._C._cuda_getDevice
        return lambda tensors: fresh(shape, strides, kind) if current() == here else tensors[0].new_empty(shape, dtype=kind)
    for place, tensor in enumerate(tensors):
        if tuple(tensor.shape) == shape and tensor.dtype == kind and tensor.is_contiguous():
            return lambda tensors: _empty_like(tensors[place])
    return lambda tensors: tensors[0].new_empty(shape, dtype=kind)
