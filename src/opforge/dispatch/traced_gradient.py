"""Gradients by the reference as one operator of a traced graph: `opforge::gradient_by_reference`.

torch.compile traces the backward pass, and a reference that reads values on the host (the lengths of sequences) cannot
be traced. Such a backward pass stands in the graph as this operator, which differentiates the reference when it runs.
Only operators with an input of whole numbers are asked: what is traced otherwise is compiled with the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from opforge.core.definition.call_form import formed
from opforge.core.definition.operator import Operator, ScalarValue
from opforge.core.language.errors import EnvironmentLacks
from opforge.dispatch.reference import differentiate

NAME = "opforge::gradient_by_reference"
DEFINITIONS: dict[str, Operator] = {}
"""Of every operator that is registered, by name (dispatch.registration)."""


def is_traced(tensors: Sequence[Any]) -> bool:
    """Whether these tensors are those of a graph in the making."""
    # not at the import, which registers operators and looks at no kernel
    from opforge.backends import torch_private

    ordinary = (torch.Tensor, torch.nn.Parameter)
    return bool(torch_private.dispatch_modes()) and any(type(tensor) not in ordinary for tensor in tensors)


def reads_numbers(operator: Operator) -> bool:
    """Whether an input is of whole numbers, whose values a reference may read."""
    return any(spec.dtype.startswith(("int", "uint")) for spec in operator.inputs)


def _compute(
    operator: str, said: str, needed: Sequence[bool], inputs: Sequence[torch.Tensor], incoming: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    scalars: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(said).items()
    }
    from opforge.backends import torch_private

    form = formed(DEFINITIONS[operator], scalars)
    autograd = torch_private.with_autograd()
    if autograd is None:
        raise EnvironmentLacks(
            f"PyTorch {torch.__version__} hides what the gradient of {operator} needs inside of a compiled graph. Call "
            f"{operator} outside of torch.compile, or install PyTorch {torch_private.TESTED[-1]}."
        )
    with autograd:
        found = differentiate(form, inputs, incoming, scalars, needed)
    return [
        torch.zeros_like(tensor, memory_format=torch.contiguous_format) if gradient is None else gradient.contiguous()
        for tensor, gradient, need in zip(inputs, found, needed, strict=True)
        if need
    ]


def _shapes(operator: Any, said: Any, needed: Any, inputs: Any, incoming: Any) -> list[torch.Tensor]:
    return [
        torch.empty_like(tensor, memory_format=torch.contiguous_format)
        for tensor, need in zip(inputs, needed, strict=True)
        if need
    ]


_custom = torch.library.custom_op(
    NAME,
    _compute,
    mutates_args=(),
    schema="(str operator, str said, bool[] needed, Tensor[] inputs, Tensor[] incoming) -> Tensor[]",
)
_custom.register_fake(_shapes)


def traced_reference(
    operator: Operator,
    tensors: Sequence[torch.Tensor],
    incoming: Sequence[torch.Tensor | None],
    scalars: Mapping[str, ScalarValue],
    needed: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    """As gradients.differentiate; what needs no gradient has None."""
    whole = operator.whole
    kinds = {scalar.name: type(scalar.default) for scalar in whole.scalars}
    given = {spec.name for spec in operator.inputs}
    values: dict[str, Any] = {name: kinds[name](value) for name, value in scalars.items() if name in kinds}
    values |= {f"has_{spec.name}": spec.name in given for spec in whole.inputs if spec.optional}
    values |= {name: [int(size) for size in sizes] for name, sizes in operator.listed.items()}
    found = iter(_custom(whole.name, json.dumps(values), list(needed), list(tensors), list(incoming)))
    return tuple(next(found) if need else None for need in needed)
