"""Whether a patched model computes what it computed before: its outputs, and the gradients of a training step.

How far two right answers may lie apart depends on the model. It is asked itself: the same step with every parameter
moved by one rounding of its dtype, up or down at random, shows what a difference of that size does to each output and
each gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from opforge.core.language.errors import OpforgeError, UsageError

NUDGES = 2
"""How often the parameters are moved."""
ALLOWED = 8.0
"""A patched model may differ by so many times what one rounding of each parameter does: the largest of two draws is
half of the largest of many, and an operator rounds its inputs, its sums and its result.
"""
SMALLEST = 4.0
"""A difference of so many roundings of the largest element is allowed anyway: a model may not depend on its weights."""


class Disagrees(OpforgeError):
    """A patched model computes something else than it did."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """How a model is called: `model(*given, **named)`."""

    given: tuple[Any, ...] = ()
    named: Mapping[str, Any]

    def __bool__(self) -> bool:
        return bool(self.given or self.named)


def inputs_of(example: Any) -> Inputs:
    """The call that an example stands for: a tensor, a tuple of arguments, or a mapping of named ones."""
    if isinstance(example, Inputs):
        return example
    if isinstance(example, Tensor):
        return Inputs(given=(example,), named={})
    if isinstance(example, Mapping):
        return Inputs(named=dict(example))
    if isinstance(example, Sequence) and not isinstance(example, str):
        return Inputs(given=tuple(example), named={})
    raise UsageError(
        f"example is a {type(example).__name__}. Give what the model is called with: a tensor, a tuple of arguments "
        'or a mapping of named ones: example={"input_ids": ids, "labels": ids}.'
    )


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one call returned: tensors by a name that says where in the result they are."""

    outputs: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]


def forward(model: torch.nn.Module, inputs: Inputs) -> Mapping[str, Tensor]:
    """The floating-point tensors that the model returns, without gradients. The model's buffers and PyTorch's
    generators are afterwards what they were.
    """
    with _unchanged(model), torch.no_grad():
        return tensors_of(model(*inputs.given, **inputs.named))


def training_step(model: torch.nn.Module, inputs: Inputs, parameters: Mapping[str, Tensor] | None = None) -> Step:
    """Outputs, and gradients of the loss (what the result calls `loss`, else a fixed sum of all outputs).
    `parameters`: with these in the place of the model's. No gradient is written into the model.
    """
    own = {name: one for name, one in model.named_parameters() if one.requires_grad}
    wanted = own if parameters is None else {name: parameters[name] for name in own}
    with _unchanged(model), torch.enable_grad():
        if parameters is None:
            returned = model(*inputs.given, **inputs.named)
        else:
            returned = torch.func.functional_call(model, dict(parameters), inputs.given, dict(inputs.named))
        outputs = tensors_of(returned)
        loss = _loss(returned, outputs)
        if not wanted or loss is None or not loss.requires_grad:
            return Step(outputs=_detached(outputs), gradients={})
        found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    gradients = {name: one for name, one in zip(wanted, found, strict=True) if one is not None}
    return Step(outputs=_detached(outputs), gradients=_detached(gradients))


def nudged(model: torch.nn.Module, draw: int) -> dict[str, Tensor]:
    """The model's parameters, each element one rounding larger or smaller."""
    generator = torch.Generator().manual_seed(draw)
    moved = {}
    for name, one in model.named_parameters():
        sign = torch.randint(0, 2, one.shape, generator=generator).to(one.device) * 2 - 1
        with torch.no_grad():
            factor = 1 + sign.to(torch.float32) * (torch.finfo(one.dtype).eps if one.is_floating_point() else 0)
            moved[name] = (one.float() * factor).to(one.dtype).requires_grad_(one.requires_grad)
    return moved


@dataclass(frozen=True, kw_only=True)
class Before:
    """What a model computed before it was patched, and how far one rounding of its parameters moves that."""

    outputs: Mapping[str, Tensor]
    step: Step
    nudges: tuple[Step, ...]


def before(model: torch.nn.Module, inputs: Inputs) -> Before:
    """A forward and a training step of the model as it is, and its steps with nudged parameters."""
    steps = tuple(training_step(model, inputs, nudged(model, draw)) for draw in range(NUDGES))
    return Before(outputs=forward(model, inputs), step=training_step(model, inputs), nudges=steps)


def agreement(was: Before, outputs: Mapping[str, Tensor], step: Step) -> str:
    """In words how near the patched model's results are. Raises Disagrees where one of them is too far."""
    worst, where = 0.0, ""
    groups = (
        ("forward", was.outputs, outputs, [nudge.outputs for nudge in was.nudges]),
        ("training step", was.step.outputs, step.outputs, [nudge.outputs for nudge in was.nudges]),
        ("gradient of", was.step.gradients, step.gradients, [nudge.gradients for nudge in was.nudges]),
    )
    for kind, theirs, mine, nudges in groups:
        if set(theirs) != set(mine):
            odd = ", ".join(sorted(set(theirs) ^ set(mine))[:4])
            raise Disagrees(f"The patched model does not give what it gave ({kind} {odd}). The patch was taken off.")
        for name, expected in theirs.items():
            share = _share(expected, mine[name], [nudge[name] for nudge in nudges if name in nudge])
            if not share <= 1:
                raise Disagrees(
                    f"The patched model disagrees with what it was: {kind} {name} differs by {share:.3g} times what "
                    f"{ALLOWED:g} roundings of its parameters do. The patch was taken off. Find the operator: "
                    "opforge model compare MODEL --attribute, or patch with only=(…) of some functions"
                )
            if share > worst:
                worst, where = share, f"{kind} {name}"
    count = len(was.step.gradients)
    return (
        f"forward, training step and {count} gradients agree with the unpatched model: the largest difference is "
        f"{worst:.2g} of the bound{f' ({where})' if where else ''}"
    )


def _share(expected: Tensor, actual: Tensor, nudges: Sequence[Tensor]) -> float:
    """The largest difference, as a share of what is allowed; infinity where NaN or infinities do not match."""
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return float("inf")
    if not expected.numel():
        return 0.0
    wide, mine = expected.double(), actual.double()
    odd = ~torch.isfinite(wide)
    if not torch.equal(wide[odd].nan_to_num(), mine[odd].nan_to_num()) or not torch.isfinite(mine[~odd]).all():
        return float("inf")
    wide, mine = wide.masked_fill(odd, 0.0), mine.masked_fill(odd, 0.0)
    moved = max((float((nudge.double().masked_fill(odd, 0.0) - wide).abs().max()) for nudge in nudges), default=0.0)
    eps = torch.finfo(expected.dtype).eps
    allowed: float = ALLOWED * moved + SMALLEST * eps * float(wide.abs().max()) + torch.finfo(torch.float32).tiny
    largest = float((mine - wide).abs().max())
    return largest / allowed


def tensors_of(returned: Any) -> dict[str, Tensor]:
    """The floating-point tensors of a result, by their place in it."""
    leaves, _ = pytree.tree_flatten_with_path(returned)
    return {
        pytree.keystr(path) or "result": leaf
        for path, leaf in leaves
        if isinstance(leaf, Tensor) and leaf.is_floating_point()
    }


def _loss(returned: Any, outputs: Mapping[str, Tensor]) -> Tensor | None:
    loss = getattr(returned, "loss", None)
    if isinstance(loss, Tensor):
        return loss.sum()
    total: Tensor | None = None
    for one in outputs.values():
        if one.requires_grad and one.numel():
            # weights that differ from element to element: a sum of a softmax has no gradient
            weights = torch.linspace(-1, 1, one.numel(), device=one.device).cos().view(one.shape)
            total = (one * weights).sum() + (0 if total is None else total)
    return total


def _detached(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: one.detach() for name, one in tensors.items()}


@contextmanager
def _unchanged(model: torch.nn.Module) -> Iterator[None]:
    """The model's buffers and the generators are what they were when the context ends; both begin alike each time."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers() if not buffer.is_meta]
    devices = sorted({one.device.index or 0 for one in model.parameters() if one.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(0)
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in kept:
                    buffer.copy_(value)
