"""One implementation of an operator's folder, called by its name: what the functions in a generated folder stand on.

Nothing is chosen and nothing is verified here; `opforge verify` and `opforge compare` do that.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch

from opforge.backends import Call
from opforge.core.definition.implementation import Implementation, Rejected
from opforge.core.definition.operator import Operator, ScalarValue
from opforge.core.language.errors import UsageError
from opforge.dispatch.arguments import checked_scalars, fitting, misfit
from opforge.registry import load
from opforge.runner.worker.kernel_arguments import prepare
from opforge.runner.worker.launch import collapse
from opforge.runner.worker.prepared_call import PreparedFunction, call_of

MOST = 1000
"""Classes of tensors whose calls are kept; then all are forgotten."""
_CALLS: dict[tuple[Any, ...], PreparedFunction] = {}


def call_named(folder: Path, implementation: str, *tensors: torch.Tensor, **scalars: ScalarValue) -> Any:
    """The outputs of one implementation of the operator in `folder`: a tensor, or a tuple of several.

    Inputs in the operator's order; on a CPU a Triton kernel is interpreted. Raises UsageError where shapes, dtypes or
    parameters do not fit the operator, or the implementation does not take them.
    """
    classes = tuple((tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in tensors)
    key = (folder, implementation, classes, tuple(sorted(scalars.items())))
    call = _CALLS.get(key)
    if call is None:
        if len(_CALLS) >= MOST:
            _CALLS.clear()
        call = _CALLS[key] = _prepared(folder, implementation, tensors, scalars)
    return call(tensors)


@cache
def _named(folder: Path, implementation: str) -> tuple[Operator, Implementation]:
    registry = load((folder.parent,))
    return registry.operator(folder.name), registry.implementation(folder.name, implementation)


def _prepared(
    folder: Path, implementation: str, tensors: tuple[torch.Tensor, ...], given: dict[str, ScalarValue]
) -> PreparedFunction:
    operator, item = _named(folder, implementation)
    if len(tensors) != len(operator.inputs):
        raise misfit(operator, tensors, given)
    scalars = checked_scalars(operator, given)
    axes, dtype = fitting(operator, tensors, scalars)
    accepted = item.accepts(axes, dtype, scalars)
    if isinstance(accepted, Rejected):
        raise UsageError(
            f"{item.name} does not take this call: {accepted.reason}. Call another: opforge show {operator.name}"
        )
    flat = [collapse(tensor, spec.shape, axes) for spec, tensor in zip(operator.inputs, tensors, strict=True)]
    for one in flat:
        if isinstance(one, Rejected):
            raise UsageError(f"{item.name} does not take this call: {one.reason}")
    device = tensors[0].device.type
    if item.backend == "triton" and device == "cpu" and "triton" not in sys.modules:
        # the interpreter is chosen when Triton is imported
        import opforge.backends.triton_interpreter  # noqa: F401
    kernel = prepare(
        item, Call(operator=operator, axes=axes, dtype=dtype, scalars=scalars, config=item.default, device=device)
    )
    return call_of(operator, item, kernel, tensors, flat, axes, dtype, scalars).run
