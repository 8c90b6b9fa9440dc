"""An operator by its reference: results that forward-mode differentiation can follow, and gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from opforge.core.definition.operator import Operator, ScalarValue


def is_fp8(tensor: torch.Tensor) -> bool:
    """Whether a tensor has 8-bit floating-point numbers."""
    return bool(tensor.dtype.itemsize == 1 and tensor.dtype.is_floating_point)


def by_reference(operator: Operator, tensors: Sequence[torch.Tensor], scalars: Mapping[str, ScalarValue]) -> Any:
    """The outputs by the reference, in float32 at the least and in PyTorch operations alone: what forward-mode
    differentiation can follow.
    """
    kind = next(tensor.dtype for spec, tensor in zip(operator.inputs, tensors, strict=True) if spec.dtype == "T")
    wide = [tensor.to(_width(tensor)) if tensor.is_floating_point() else tensor for tensor in tensors]
    returned = operator.reference(*wide, **scalars)
    outputs = returned if isinstance(returned, tuple) else (returned,)
    names = [spec.dtype_for(str(kind).removeprefix("torch."), scalars) for spec in operator.outputs]
    found = tuple(output.to(getattr(torch, name)) for output, name in zip(outputs, names, strict=True))
    return found if isinstance(returned, tuple) else found[0]


def differentiate(
    operator: Operator,
    tensors: Sequence[torch.Tensor],
    incoming: Sequence[torch.Tensor | None],
    scalars: Mapping[str, ScalarValue],
    needed: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of the inputs, by differentiating the reference in float32 (float64 stays float64).

    incoming   one for each output, in the outputs' shapes; None counts as zero
    needed     which inputs need one; the others get None
    Under grad mode (create_graph=True) the gradients can be differentiated again.
    """
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        wide = [_wide(tensor, need, again) for tensor, need in zip(tensors, needed, strict=True)]
        returned = operator.reference(*wide, **scalars)
        outputs = returned if isinstance(returned, tuple) else (returned,)
        pairs = [
            (output, gradient.to(output.dtype))
            for output, gradient in zip(outputs, incoming, strict=True)
            if gradient is not None and output.requires_grad
        ]
        leaves = [tensor for tensor, need in zip(wide, needed, strict=True) if need]
        found = torch.autograd.grad(
            [output for output, _ in pairs],
            leaves,
            [gradient for _, gradient in pairs],
            allow_unused=True,
            create_graph=again,
        )
        given = iter(found)
        result: list[torch.Tensor | None] = []
        for original, need in zip(tensors, needed, strict=True):
            gradient = next(given) if need else None
            result.append(None if gradient is None else gradient.to(original.dtype))
    return tuple(result)


def _width(tensor: torch.Tensor) -> torch.dtype:
    """Float32 at the least. PyTorch promotes no FP8."""
    return torch.float32 if is_fp8(tensor) else torch.promote_types(tensor.dtype, torch.float32)


def _wide(tensor: torch.Tensor, need: bool, again: bool) -> torch.Tensor:
    # whole numbers have no gradient, and an index has to stay one
    if not tensor.is_floating_point():
        return tensor
    wide = _width(tensor)
    if again and tensor.requires_grad:
        # a view of its own for each: one tensor may be given twice, and each place has its gradient
        return tensor.to(wide).view_as(tensor)
    return tensor.detach().to(wide).requires_grad_(need)
