"""What every function of opforge.ops.functional does: a call of an operator that fits, or PyTorch's own function.

Which operators stand for a function, and how its calls become theirs, their definitions say (`like`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from opforge import ops
from opforge.backends import torch_private
from opforge.core.definition.gradient import wire
from opforge.core.definition.operator import Like, Lowered, Operator
from opforge.core.definition.shapes import Axes
from opforge.core.definition.tensors import shapes_of

if TYPE_CHECKING:
    from opforge.dispatch import Choice

_NOT_THERE = object()
MOST = 1000
"""Classes of calls that are kept for each function; then all are forgotten."""
_PLAIN = frozenset({int, float, bool, str, type(None), torch.Size, torch.dtype})
_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled
_any_autocast = torch_private.any_autocast


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


def torch_function(like: Like) -> Callable[..., Any] | None:
    """PyTorch's function that a Like names; None where this PyTorch has none of that name."""
    if not isinstance(like.function, str):
        return like.function
    found = functools.reduce(lambda at, name: getattr(at, name, _NOT_THERE), like.function.split(".")[1:], torch)
    return found if callable(found) else None


def standing_for(definitions: Sequence[Operator]) -> dict[str, Callable[..., Any]]:
    """The functions that operators stand for, by name. Operators that stand for one function are asked in their
    order here.
    """
    asked: dict[str, list[tuple[Operator, Like]]] = {}
    for definition in definitions:
        for like in definition.like:
            asked.setdefault(like.name, []).append((definition, like))
    return {
        name: lowered_function(name, instead, tuple(pairs))
        for name, pairs in sorted(asked.items())
        if (instead := torch_function(pairs[0][1])) is not None
    }


def lowered_function(
    name: str, instead: Callable[..., Any], pairs: tuple[tuple[Operator, Like], ...]
) -> Callable[..., Any]:
    """The function that calls the first operator whose Like takes a call, and `instead` where none does; `.why(…)` of
    it is the Route of a call.
    """

    def route(arguments: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Operator | None, Lowered, str]:
        """The operator and its call; or no operator, and why PyTorch computes this."""
        first = arguments[0] if arguments else named.get("input", named.get("query"))
        if not isinstance(first, Tensor):
            return None, Lowered(()), "the first argument is no tensor"
        reasons: list[str] = []
        for operator, like in pairs:
            reason: Lowered | str
            if like.autocast and torch.is_autocast_enabled(first.device.type):
                reason = "under autocast it decides the dtypes"
            elif not isinstance(reason := like.lower(*arguments, **named), str):
                lowered = reason
                if not (reason := unfit(operator, like, lowered)):
                    return operator, lowered, ""
                # of this operator's shape: what the others say of theirs is beside the point
                return None, lowered, reason
            if reason not in reasons:
                reasons.append(reason)
        return None, Lowered(()), "; ".join(reasons)

    # calls that become an operator's with the very tensors: by what a lowering may look at
    known: dict[tuple[Any, ...], tuple[str, tuple[int, ...], Mapping[str, Any]]] = {}
    # others: which operator takes them; they are lowered at each call
    taken: dict[tuple[Any, ...], tuple[Operator, Like]] = {}
    kept = not any(like.only_kernels for _, like in pairs)

    @functools.wraps(pairs[0][1].lower)
    def call(*arguments: Any, **named: Any) -> Any:
        key = None
        if kept and not _is_compiling() and not _any_autocast():
            given = (*arguments, *named.values()) if named else arguments
            key = _class_of(given, named)
            if key is not None and (found := known.get(key)) is not None:
                name, places, scalars = found
                return getattr(ops, name)(*[given[place] for place in places], **scalars)
        operator: Operator | None
        asked: Lowered | str = ""
        if key is not None and (pair := taken.get(key)) is not None:
            operator, asked = pair[0], pair[1].lower(*arguments, **named)
        if isinstance(asked, Lowered):
            lowered = asked
        else:
            operator, lowered, _ = route(arguments, named)
            if operator is None:
                return instead(*arguments, **named)
            if key is not None:
                if len(known) + len(taken) >= MOST:
                    known.clear()
                    taken.clear()
                if (whole := _places(lowered, given)) is not None:
                    known[key] = (operator.name, whole, dict(lowered.scalars))
                else:
                    taken[key] = next((one, like) for one, like in pairs if one is operator)
        assert operator is not None  # a call that is lowered has one
        result = getattr(ops, operator.name)(*lowered.tensors, **lowered.scalars)
        return result if lowered.finish is None else lowered.finish(result)

    def why(*arguments: Any, **named: Any) -> Route:
        """Which way this call goes: a Route."""
        operator, lowered, reason = route(arguments, named)
        if operator is None:
            return Route(function=name, operator="", choice=None, reason=reason)
        choice = getattr(ops, operator.name).why(*lowered.tensors, **lowered.scalars)
        return Route(function=name, operator=operator.name, choice=choice, reason="")

    call.why = why  # type: ignore[attr-defined]
    call.__name__ = call.__qualname__ = name
    call.__module__ = "opforge.ops.functional"
    call.operators = tuple(operator.name for operator, _ in pairs)  # type: ignore[attr-defined]
    call.instead = instead  # type: ignore[attr-defined]
    return call


def _class_of(given: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """All that a lowering may look at in a call; None where that is more than shapes, dtypes and plain values.

    A module stands for its class: what is asked of it is given beside it.
    """
    key: list[Any] = [_is_grad_enabled(), *named]
    for one in given:
        kind = type(one)
        if kind is Tensor or kind is torch.nn.Parameter:
            key += (one.shape, one.stride(), one.dtype, one.device, one.requires_grad)
        elif kind in _PLAIN:
            key += (kind, one)
        elif kind is tuple and all(type(each) is int for each in one):
            key.append(one)
        elif isinstance(one, torch.nn.Module):
            key.append(kind)
        else:
            return None
    return tuple(key)


def _places(lowered: Lowered, given: Sequence[Any]) -> tuple[int, ...] | None:
    """Where the tensors of a lowered call stand among the arguments; None where one was made, or a result is."""
    if lowered.finish is not None or any(isinstance(value, Tensor) for value in lowered.scalars.values()):
        return None
    places = [next((at for at, one in enumerate(given) if one is tensor), -1) for tensor in lowered.tensors]
    return None if -1 in places else tuple(places)


def unfit(operator: Operator, like: Like, lowered: Lowered) -> str:
    """Why an operator does not take a lowered call, "" where it does: dtypes that it has, and gradients that an
    operator of its own computes (differentiating the reference takes more time and memory than PyTorch's own formulas).
    """
    wants_gradient = False
    for spec, tensor in zip(operator.inputs, lowered.tensors, strict=False):
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in (operator.dtypes if spec.dtype == "T" else (spec.dtype,)):
            return f"{operator.name} has no {tensor.dtype}"
        wants_gradient |= tensor.requires_grad
    wants_gradient &= torch.is_grad_enabled()
    if wants_gradient and operator.gradient is None:
        return f"a gradient is wanted, and {operator.name} has no gradient operator"
    if not like.only_kernels:
        return ""
    if torch.compiler.is_compiling():
        return "in a compiled graph it is PyTorch's"
    choice = getattr(ops, operator.name).why(*lowered.tensors, **lowered.scalars)
    if choice.implementation.backend == "torch":
        return f"no kernel of ours is taken here: {choice.why}"
    if wants_gradient:
        choice = _gradient_choice(operator, lowered)
        if choice.implementation.backend == "torch":
            return f"its gradients are PyTorch's here: {choice.why}"
    return ""


def _gradient_choice(operator: Operator, lowered: Lowered) -> Choice:
    """What dispatch takes for the gradients of a call, by tensors of the shapes that they will have."""
    function = getattr(ops, operator.gradient)  # type: ignore[arg-type]
    first = lowered.tensors[0]
    given = dict(zip((spec.name for spec in operator.inputs), lowered.tensors, strict=False))
    given |= {spec.name: lowered.scalars[spec.name] for spec in operator.inputs if spec.name in lowered.scalars}
    scalars = {name: value for name, value in lowered.scalars.items() if name not in given}
    axes: Axes = operator.bind({name: tuple(tensor.shape) for name, tensor in given.items()}, scalars)
    made = {
        spec.name: first.new_empty(
            shapes_of(spec, axes)[0], dtype=first.dtype if spec.dtype == "T" else getattr(torch, spec.dtype)
        )
        for spec in operator.outputs
    }
    rows = {"input": given, "output": made, "incoming": made}
    names = {"input": [spec.name for spec in operator.inputs]}
    names["output"] = names["incoming"] = [spec.name for spec in operator.outputs]
    takes = wire(operator, function.operator).takes
    tensors = {
        spec.name: rows[kind].get(names[kind][place])
        for spec, (kind, place) in zip(function.operator.inputs, takes, strict=True)
    }
    present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    known = {scalar.name for scalar in function.operator.scalars}
    choice: Choice = function.why(**present, **{name: value for name, value in scalars.items() if name in known})
    return choice
