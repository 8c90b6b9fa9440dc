"""Gradients of an operator's inputs: by the operator that computes them, or by differentiating the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opforge.core.gradient import Wiring
from opforge.core.operator import Operator, ScalarValue


@dataclass(frozen=True, kw_only=True)
class Backward:
    """The backward pass of an operator.

    wiring, call   how its gradient operator is joined, and the function that is it. Without one (None) the reference is differentiated,
                   in float32 at the least; so are the inputs that the gradient operator says nothing about
    """

    operator: Operator
    wiring: Wiring | None = None
    call: Callable[..., Any] | None = None

    def kept(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
        """What must be kept from the forward call, in the places of inputs and outputs; None where nothing asks for it."""
        if self.wiring is None:
            return (*inputs, *(None for _ in outputs))
        taken = {"input": set[int](), "output": set[int](), "incoming": set[int]()}
        for kind, place in self.wiring.takes:
            taken[kind].add(place)
        open_ones = any(tensor.requires_grad and gives is None for tensor, gives in zip(inputs, self.wiring.gives, strict=True))
        return (
            *(tensor if open_ones or place in taken["input"] else None for place, tensor in enumerate(inputs)),
            *(tensor if place in taken["output"] else None for place, tensor in enumerate(outputs)),
        )

    def __call__(
        self, kept: Sequence[torch.Tensor | None], incoming: Sequence[torch.Tensor], scalars: Mapping[str, ScalarValue], needed: Sequence[bool]
    ) -> tuple[torch.Tensor | None, ...]:
        """One gradient for each input that needs one, None for the others.

        kept       what `kept` said
        incoming   a gradient for each output, in its shape
        """
        count = len(self.operator.inputs)
        found: list[torch.Tensor | None] = [None] * count
        left = list(needed[:count])
        if self.wiring is not None and self.call is not None:
            # kernels take neighbours: the gradient of a sum arrives expanded
            sources = {"input": kept[:count], "output": kept[count:], "incoming": [gradient.contiguous() for gradient in incoming]}
            joined = [need and place is not None for need, place in zip(left, self.wiring.gives, strict=True)]
            if any(joined):
                returned = self.call(*(sources[kind][place] for kind, place in self.wiring.takes), **{name: scalars[name] for name in self.wiring.scalars})
                results = returned if isinstance(returned, tuple) else (returned,)
                found = [results[place] if need and place is not None else None for need, place in zip(joined, self.wiring.gives, strict=True)]
                left = [need and not done for need, done in zip(left, joined, strict=True)]
        if any(left):
            inputs = [tensor for tensor in kept[:count] if tensor is not None]
            for place, gradient in enumerate(differentiate(self.operator, inputs, incoming, scalars, left)):
                if left[place]:
                    found[place] = gradient
        return tuple(found)


def differentiate(
    operator: Operator, tensors: Sequence[torch.Tensor], incoming: Sequence[torch.Tensor | None], scalars: Mapping[str, ScalarValue], needed: Sequence[bool]
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
        pairs = [(output, gradient.to(output.dtype)) for output, gradient in zip(outputs, incoming, strict=True) if gradient is not None and output.requires_grad]
        leaves = [tensor for tensor, need in zip(wide, needed, strict=True) if need]
        found = torch.autograd.grad([output for output, _ in pairs], leaves, [gradient for _, gradient in pairs], allow_unused=True, create_graph=again)
        given = iter(found)
        result: list[torch.Tensor | None] = []
        for original, need in zip(tensors, needed, strict=True):
            gradient = next(given) if need else None
            result.append(None if gradient is None else gradient.to(original.dtype))
    return tuple(result)


def _wide(tensor: torch.Tensor, need: bool, again: bool) -> torch.Tensor:
    # whole numbers have no gradient, and an index has to stay one
    if not tensor.is_floating_point():
        return tensor
    wide = torch.promote_types(tensor.dtype, torch.float32)
    if again and tensor.requires_grad:
        # a view of its own for each: one tensor may be given twice, and each place has its gradient
        return tensor.to(wide).view_as(tensor)
    return tensor.detach().to(wide).requires_grad_(need)
