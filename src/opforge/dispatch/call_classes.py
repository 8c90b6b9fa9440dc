"""What tells calls apart: the class of their tensors and parameters, how inputs lie, and what is asked of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from opforge.core.definition.operator import ScalarValue
from opforge.roofline.manners import VECTOR_BYTES, Manner, manner_of
from opforge.runner.worker.prepared_call import PreparedFunction


def may_be_negated(tensor: torch.Tensor) -> bool:
    """Whether a tensor could be the imaginary part of a conjugate: all its strides are even then, since real parts lie
    between its elements.
    """
    return all(stride % 2 == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)


def without_negation(
    run: PreparedFunction, compute: Callable[[Sequence[torch.Tensor]], Any], overwritten: Sequence[int]
) -> PreparedFunction:
    """The imaginary part of a conjugate is a view whose elements PyTorch negates when it reads them; a kernel would
    not.

    compute      the call on plain tensors
    overwritten  the places of tensors that the call overwrites
    """

    def asked(tensors: Sequence[torch.Tensor]) -> Any:
        if any(tensor.is_neg() for tensor in tensors):
            plain = [tensor.resolve_neg() for tensor in tensors]
            found = compute(plain)
            for place in overwritten:
                if tensors[place].is_neg():
                    tensors[place].copy_(plain[place])
            return found
        return run(tensors)

    return asked


def counted(run: PreparedFunction, overwritten: Sequence[int]) -> PreparedFunction:
    """A kernel that overwrites tensors does not tell PyTorch, which counts the versions of what autograd keeps."""

    def told(tensors: Sequence[torch.Tensor]) -> Any:
        found = run(tensors)
        torch.autograd.graph.increment_version([tensors[place] for place in overwritten])
        return found

    return told


def without_autocast(function: Callable[..., Any], named: Mapping[str, ScalarValue]) -> PreparedFunction:
    """A function of PyTorch's for a caller who knows that autocast is off."""
    return lambda tensors: function(*tensors, **named)


def class_of(tensors: Sequence[torch.Tensor], scalars: Mapping[str, ScalarValue]) -> tuple[Any, ...]:
    """Everything by which calls are told apart, types and gradients too."""
    parts = [
        part
        for tensor in tensors
        for part in (type(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad)
    ]
    return (*parts, *apart(scalars))


def apart(scalars: Mapping[str, ScalarValue]) -> Iterable[Any]:
    """Parameters by which calls are told apart. 0.0, -0.0, 0 and False are one key of a dictionary, and not one value
    of a parameter.
    """
    return scalars.items() if 0 not in scalars.values() else (repr(scalars),)


def manner_of_call(flat: Sequence[Any]) -> Manner:
    """How inputs lie; of what cannot be seen in the kernel's shape it is enough that it is strided."""
    return tuple(
        manner_of([(item.shape, item.stride(), item.element_size(), item.data_ptr() % VECTOR_BYTES == 0)])[0]
        if isinstance(item, torch.Tensor)
        else ("strided", False)
        for item in flat
    )
