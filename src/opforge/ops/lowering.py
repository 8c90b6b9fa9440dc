"""How a function of PyTorch's name goes to an operator or to PyTorch: what stands between opforge.ops.functional's
statements and the calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from opforge import ops

if TYPE_CHECKING:
    from opforge.dispatch import Choice

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Lowered(NamedTuple):
    """A call of an operator: `finish(operator(*tensors, **scalars))`."""

    operator: str
    tensors: Sequence[Tensor]
    scalars: Mapping[str, Any] = {}
    finish: Callable[[Any], Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Route:
    """Which way a call goes.

    function   the function's name
    operator   the opforge operator that computes it; "" where PyTorch does
    choice     the operator's implementation and why it is this one; None where PyTorch computes it
    reason     why PyTorch computes it; "" where an operator does
    """

    function: str
    operator: str
    choice: Choice | None
    reason: str

    def __str__(self) -> str:
        return f"{self.function} → {self.choice or f'torch: {self.reason}'}"


def like(instead: Callable[..., Any], autocast: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a function of what says how a call is lowered: to a Lowered, or to PyTorch for the reason returned.

    instead    PyTorch's function of that name
    autocast   whether torch.autocast has a say in its dtypes
    """

    def wrap(lower: Callable[..., Lowered | str]) -> Callable[..., Any]:
        def route(arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Lowered | str:
            first = arguments[0] if arguments else named.get("input")
            if not isinstance(first, Tensor):
                return "the first argument is no tensor"
            if autocast and torch.is_autocast_enabled(first.device.type):
                return "under autocast it decides the dtypes"
            return lower(*arguments, **named)

        @functools.wraps(lower)
        def call(*arguments: Any, **named: Any) -> Any:
            lowered = route(arguments, named)
            if isinstance(lowered, str):
                return instead(*arguments, **named)
            result = getattr(ops, lowered.operator)(*lowered.tensors, **lowered.scalars)
            return result if lowered.finish is None else lowered.finish(result)

        def why(*arguments: Any, **named: Any) -> Route:
            """Which way this call goes: a Route."""
            lowered = route(arguments, named)
            if isinstance(lowered, str):
                return Route(function=lower.__name__, operator="", choice=None, reason=lowered)
            choice = getattr(ops, lowered.operator).why(*lowered.tensors, **lowered.scalars)
            return Route(function=lower.__name__, operator=lowered.operator, choice=choice, reason="")

        call.why = why  # type: ignore[attr-defined]
        return call

    return wrap


def unfit(operator: str, *tensors: Any) -> str:
    """Why an operator does not take these tensors, "" where it does: one dtype that it has, one device, plain memory,
    and gradients that an operator of its own computes (differentiating the reference takes more time and memory than
    PyTorch's own formulas).
    """
    first = tensors[0]
    for tensor in tensors:
        if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided or tensor.is_nested:
            return "not all operands are tensors in plain memory"
        if tensor.dtype not in DTYPES:
            return f"{operator} has no {tensor.dtype}"
        if tensor.dtype != first.dtype or tensor.device != first.device:
            return f"{operator} takes one dtype on one device"
    if (
        torch.is_grad_enabled()
        and any(tensor.requires_grad for tensor in tensors)
        and getattr(ops, operator).operator.gradient is None
    ):
        return f"a gradient is wanted, and {operator} has no gradient operator"
    return ""
