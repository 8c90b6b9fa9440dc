"""What torch.autocast makes of a call: products of matrices in its dtype, others in the widest of those given."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from opforge.backends import torch_private
from opforge.core.definition.operator import Operator

_any_autocast = torch_private.any_autocast
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def cast(operator: Operator, tensors: Sequence[Any]) -> Sequence[Any]:
    """The tensors, one for each input, as autocast wants them; the same object where it has nothing to say. None, for
    an input that is not given, stays; the tensors of a list are converted one by one.
    """
    first = tensors[0] if tensors else None
    if isinstance(first, list | tuple):
        first = first[0]
    if first is None or first.is_meta or not torch.is_autocast_enabled(first.device.type):
        return tensors
    if operator.overwritten:
        return tensors  # the caller's own memory is what is written
    joined = [spec.dtype == "T" and tensor is not None for spec, tensor in zip(operator.inputs, tensors, strict=False)]
    kinds = [
        item.dtype
        for tensor, own in zip(tensors, joined, strict=False)
        if own
        for item in (tensor if isinstance(tensor, list | tuple) else (tensor,))
    ]
    if any(kind not in _DTYPES for kind in kinds):
        return tensors
    wanted = (
        torch.get_autocast_dtype(first.device.type)
        if operator.unit == "matrix"
        else functools.reduce(torch.promote_types, kinds)
    )
    if all(kind == wanted for kind in kinds):
        return tensors
    return tuple(_to(tensor, wanted) if own else tensor for tensor, own in zip(tensors, joined, strict=False))


def _to(tensor: Any, wanted: torch.dtype) -> Any:
    return [item.to(wanted) for item in tensor] if isinstance(tensor, list | tuple) else tensor.to(wanted)


def outside_autocast(bound: Callable[..., bool]) -> Callable[..., bool]:
    """What autocast would compute in another dtype is not computed."""
    return lambda *tensors: not _any_autocast() and bound(*tensors)
