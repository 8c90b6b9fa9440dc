"""What lowerings of PyTorch's calls share: which tensors fit one operator, and axes made one without a copy.

A lowering is asked at every call. It looks at shapes and strides alone; what it returns in words is why PyTorch
computes the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opforge.core.definition.likeness import Lowered


def unfit(*tensors: Any) -> str:
    """Why these operands do not go to one operator; "" where they do: tensors in plain memory, of one dtype, on one
    device.
    """
    import torch

    first = tensors[0]
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or tensor.is_nested:
            return "not all operands are tensors in plain memory"
        if tensor.dtype != first.dtype or tensor.device != first.device:
            return f"one dtype on one device is wanted, and {tensor.dtype} on {tensor.device} is beside {first.dtype}"
    return ""


def along(x: Any, dim: int | None, dtype: Any) -> Lowered | str:
    """A function over the last axis, along `dim`. Another axis is moved there where that costs no copy."""
    import torch

    if dim is None or not isinstance(dim, int):
        return "no dim is given"
    if reason := unfit(x):
        return reason
    if dtype is not None and dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"its result would be {dtype}"
    if not -x.ndim <= dim < x.ndim:
        return f"dim {dim} is none of {x.ndim} axes"
    if dim in (-1, x.ndim - 1):
        return Lowered((x if dtype is None else x.to(dtype),))
    moved = x.movedim(dim, -1)
    if not moved.is_contiguous():
        return f"dim {dim} is not the innermost in memory: two copies would be needed"
    return Lowered((moved if dtype is None else moved.to(dtype),), finish=lambda y: y.movedim(-1, dim))


def normalized(x: Any, shape: Any, parameters: Sequence[Any], eps: float) -> Lowered | str:
    """A norm over the last axes, which are made one; parameters are of their shape."""
    if any(parameter is None for parameter in parameters):
        return f"the operator takes {'a weight and a bias' if len(parameters) == 2 else 'a weight'}"
    if reason := unfit(x, *parameters):
        return reason
    shape = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    count = len(shape)
    if not count or tuple(x.shape[-count:]) != shape or any(tuple(item.shape) != shape for item in parameters):
        return f"the last axes are not {shape}"
    if count == 1:
        return Lowered((x, *parameters), {"eps": float(eps)})
    if not x.is_contiguous():
        return f"{count} axes in strides cannot be made one without a copy"
    whole = x.shape
    flat = (x.flatten(-count), *(item.flatten() for item in parameters))
    return Lowered(flat, {"eps": float(eps)}, lambda y: y.view(whole))


def elementwise(x: Any, inplace: bool = False, **scalars: Any) -> Lowered | str:
    """A function of each element, which makes its result."""
    if inplace:
        return "the operator makes its result, and overwrites nothing"
    return unfit(x) or Lowered((x,), scalars)


def product(a: Any, b: Any) -> Lowered | str:
    """A product of two matrices, or of rows of any number of axes and one matrix."""
    if reason := unfit(a, b):
        return reason
    if b.ndim != 2 or a.ndim < 2 or a.shape[-1] != b.shape[0]:
        return "the operands are not rows and a matrix that fits them"
    if a.ndim == 2:
        return Lowered((a, b))
    if not a.is_contiguous():
        return "rows in strides cannot be made one axis without a copy"
    shape = (*a.shape[:-1], b.shape[1])
    return Lowered((a.view(-1, a.shape[-1]), b), finish=lambda y: y.view(shape)) if a.numel() else "no rows"


def batched(c: Any, a: Any, b: Any, beta: float, alpha: float) -> Lowered | str:
    """alpha a b + beta c. Without c (beta = 0), memory of its shape stands in its place and is not read."""
    if reason := unfit(a, b, *(() if c is None else (c,))):
        return reason
    if a.ndim < 3 or b.ndim != a.ndim or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        return "the operands are not batches of one shape that fit"
    shape = (*a.shape[:-1], b.shape[-1])
    if c is not None and tuple(c.shape) != shape:
        return "what is added is broadcast"
    given = a.new_empty(shape) if c is None else c
    return Lowered((a, b, given), {"alpha": float(alpha), "beta": float(beta)})


def spreads(x: Any, other: Any) -> bool:
    """Whether `other` lies along the last axes of x: it is added to each of their rows."""
    return bool(0 < other.ndim <= x.ndim and x.shape[-other.ndim :] == other.shape)


def added(x: Any, other: Any, alpha: float, out: Any) -> str:
    """Why a sum of two tensors goes to PyTorch, whatever their shapes; "" where the shapes decide."""
    if out is not None or alpha != 1:
        return "the operators make their result, and multiply nothing by alpha"
    return unfit(x, other)
