"""Gradients of an operator's inputs: by the operator that computes them, or by differentiating the reference; and what
keeps an eager
call in PyTorch's graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from opforge.backends import torch_private
from opforge.core.definition.call_form import arguments, formed
from opforge.core.definition.gradient import Wiring, wire
from opforge.core.definition.operator import Operator, ScalarValue
from opforge.dispatch.reference import differentiate, is_fp8
from opforge.dispatch.traced_gradient import is_traced, reads_numbers, traced_reference

_VMAP = torch_private.VMAP_KEY
_is_included = torch_private.key_is_included
_any_autocast = torch_private.any_autocast


@dataclass(frozen=True, kw_only=True)
class Backward:
    """The backward pass of an operator.

    wiring, call   how its gradient operator is joined, and the function that is it. Without one (None) the reference is
                   differentiated, in float32 at the least; so are the inputs that the gradient operator says nothing
                   about
    custom         the same function as PyTorch's dispatcher sees it, tensors and then scalars: for many gradients at
                   once (is_grads_batched=True), whose tensors look like one gradient each
    further        the same of operators for the gradients of further inputs, called where one of those is wanted
    """

    operator: Operator
    wiring: Wiring | None = None
    call: Callable[..., Any] | None = None
    custom: Callable[..., Any] | None = None
    further: tuple[Backward, ...] = ()

    @cached_property
    def open(self) -> tuple[bool, ...]:
        """Which inputs may have a gradient, as the definition says it (`differentiable`)."""
        wanted = self.operator.differentiable
        return tuple(wanted is None or spec.name in wanted for spec in self.operator.inputs)

    def wanted(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether a call of these tensors stands in PyTorch's graph: one of them that may have a gradient asks for it.
        A tensor in FP8 has none: its gradient would have to be FP8 too.
        """
        return any(
            tensor.requires_grad and may and not is_fp8(tensor) for tensor, may in zip(tensors, self.open, strict=True)
        )

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Where each input of the gradient operator stands in a row of the inputs, the outputs and what arrives for
        them.
        """
        assert self.wiring is not None
        before = {
            "input": 0,
            "output": len(self.operator.inputs),
            "incoming": len(self.operator.inputs) + len(self.operator.outputs),
        }
        return tuple(before[kind] + place for kind, place in self.wiring.takes)

    @cached_property
    def parts(self) -> tuple[Backward, ...]:
        """Those of this and the further ones that have an operator to call."""
        return tuple(part for part in (self, *self.further) if part.wiring is not None and part.call is not None)

    def given_to(self, needed: Sequence[bool]) -> list[bool]:
        """Which of the gradients that are needed its own operator gives."""
        assert self.wiring is not None
        return [need and place is not None for need, place in zip(needed, self.wiring.gives, strict=True)]

    @cached_property
    def always(self) -> tuple[bool, ...] | None:
        """Which inputs and outputs are kept whatever needs a gradient; None where that decides."""
        inputs, outputs = len(self.operator.inputs), len(self.operator.outputs)
        if self.further:
            return None
        if self.wiring is None:
            return (*(True for _ in range(inputs)), *(False for _ in range(outputs)))
        if None in self.wiring.gives:
            return None
        return tuple(place in self.places for place in range(inputs + outputs))

    def kept(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
        """What must be kept from the forward call, in the places of inputs and outputs; None where nothing asks
        for it.
        """
        if self.always is not None:
            return tuple(
                [tensor if keep else None for tensor, keep in zip((*inputs, *outputs), self.always, strict=True)]
            )
        left = [tensor.requires_grad for tensor in inputs]
        taken: set[int] = set()
        for part in self.parts:
            asked = part.given_to(left)
            # what the first takes is kept whoever asks, as where it is the only one
            if part is self or any(asked):
                taken.update(part.places)
            left = [need and not answered for need, answered in zip(left, asked, strict=True)]
        # inputs whose gradient comes from the reference, which then needs all of them
        whole = any(left) or not self.parts
        return tuple(
            [
                tensor if place in taken or (whole and place < len(inputs)) else None
                for place, tensor in enumerate((*inputs, *outputs))
            ]
        )

    def __call__(
        self,
        kept: Sequence[torch.Tensor | None],
        incoming: Sequence[torch.Tensor],
        scalars: Mapping[str, ScalarValue],
        needed: Sequence[bool],
    ) -> tuple[torch.Tensor | None, ...]:
        """One gradient for each input that needs one, None for the others.

        kept       what `kept` said
        incoming   a gradient for each output, in its shape
        """
        count = len(self.operator.inputs)
        found: list[torch.Tensor | None] = [None] * count
        left = [need and may for need, may in zip(needed[:count], self.open, strict=True)]
        row: tuple[torch.Tensor | None, ...] = ()
        for part in self.parts:
            assert part.wiring is not None and part.call is not None
            asked = part.given_to(left)
            if any(asked):
                # kernels take neighbours: the gradient of a sum arrives expanded
                row = row or (*kept, *[gradient.contiguous() for gradient in incoming])
                call = part.call if part.custom is None or not _is_included(_VMAP) else part.custom
                returned = call(
                    *[row[place] for place in part.places], **{name: scalars[name] for name in part.wiring.scalars}
                )
                results = returned if isinstance(returned, tuple) else (returned,)
                for at, place in enumerate(part.wiring.gives):
                    if asked[at] and place is not None:
                        found[at], left[at] = results[place], False
        if any(left):
            inputs = [tensor for tensor in kept[:count] if tensor is not None]
            left = [need and not is_fp8(tensor) for need, tensor in zip(left, inputs, strict=True)]
            by = traced_reference if is_traced(inputs) and reads_numbers(self.operator) else differentiate
            for place, gradient in enumerate(by(self.operator, inputs, incoming, scalars, left) if any(left) else ()):
                if left[place]:
                    found[place] = gradient
        return tuple(found)


def in_form(whole: Backward, form: Operator, known: dict[tuple[str, ...], Backward]) -> Backward:
    """The backward pass of calls of one form: by the gradient operator in the same form, or by the reference where
    there is none, or that operator cannot be told of an input that such calls are given.

    whole   of the operator as its definition has it
    known   those that were made before, by the names of their inputs
    """
    if whole.call is None:
        return Backward(operator=form)
    given = tuple([spec.name for spec in form.inputs])
    if given not in known:
        first, *further = (_joined(part.call, form) for part in (whole, *whole.further))
        known[given] = replace(
            first or Backward(operator=form), further=tuple(part for part in further if part is not None)
        )
    return known[given]


def _joined(gradient: Any, form: Operator) -> Backward | None:
    """A gradient operator, as a function, joined to calls of a form; None where it needs what they have not, or cannot
    be told of an input that they are given.
    """
    operator = gradient.operator
    names = {spec.name for spec in (*form.inputs, *form.outputs)}
    names |= {f"d{spec.name}" for spec in form.outputs}
    told = {spec.name for spec in operator.inputs} | set(operator.carried)
    missing = any(not spec.optional and spec.name not in names for spec in operator.inputs)
    if missing or any(spec.optional and spec.name not in told for spec in form.inputs):
        return None
    absent = {f"has_{spec.name}": False for spec in operator.inputs if spec.optional and spec.name not in names}
    there = formed(operator, absent)
    return Backward(
        operator=form,
        wiring=wire(form, there),
        call=lambda *tensors, **scalars: gradient(*arguments(there, tensors), **scalars),
        custom=lambda *tensors, **scalars: gradient._watched(tensors, {**scalars, **absent}),
    )


class Tracked(torch.autograd.Function):  # type: ignore[misc, unused-ignore]  # torch leaves it untyped
    """`Tracked.apply(backward, run, scalars, *tensors)`: an eager call in PyTorch's graph, `run(tensors)` going forward
    and `backward` coming back.

    The custom operator does the same in four times the host's time (36 us against 9 us, see docs/timing.md): it first
    asks of every layer of PyTorch's dispatcher, none of which has anything to say of ordinary tensors.
    """

    @staticmethod
    def forward(
        ctx: Any,
        backward: Backward,
        run: Callable[[Sequence[torch.Tensor]], Any],
        scalars: Mapping[str, ScalarValue],
        *tensors: torch.Tensor,
    ) -> Any:
        output = run(tensors)
        remember(ctx, backward, scalars, tensors, output)
        return output

    @staticmethod
    def backward(ctx: Any, *incoming: torch.Tensor) -> Any:
        return (None, None, None, *come_back(ctx, incoming, ctx.needs_input_grad[3:]))


def apply_directly(
    backward: Backward,
    run: Callable[[Sequence[torch.Tensor]], Any],
    scalars: Mapping[str, ScalarValue],
    forward_of: Callable[..., Callable[..., Any] | None] = lambda run, places: None,
) -> Callable[..., Any]:
    """`Tracked.apply` of these, a function of tensors one by one, for a caller who has looked already at transforms and
    at what they leave behind: autograd.Function asks for them again, for a third of such a call's time. A type of its
    own for each such call knows the rest, which a node need not carry.

    forward_of   `forward_of(run, places)`: a quicker `forward(ctx, *tensors)`, which keeps what stands at these places
                 of a row of the inputs and the outputs; None where there is none
    """
    several = len(backward.operator.outputs) != 1
    chosen = not all(backward.open) or _may_be_fp8(backward.operator)

    def forward(ctx: Any, *tensors: torch.Tensor) -> Any:
        output = run(tensors)
        outputs = output if several else (output,)
        ctx.save_for_backward(*backward.kept(tensors, outputs))
        if chosen:
            _mark(ctx, backward, tensors, outputs)
        return output

    def back(ctx: Any, *incoming: torch.Tensor) -> Any:
        return gradients_of(backward, scalars, ctx.saved_tensors, incoming, ctx.needs_input_grad)

    places = None
    if backward.always is not None:
        places = tuple([place if keep else -1 for place, keep in enumerate(backward.always)])
    quick = None if chosen else forward_of(run, places)
    members = {"forward": staticmethod(quick or forward), "backward": staticmethod(back)}
    return torch_private.function_apply(type(Tracked.__name__, (torch.autograd.Function,), members))


def remember(
    ctx: Any, backward: Backward, scalars: Mapping[str, ScalarValue], tensors: Sequence[torch.Tensor], output: Any
) -> None:
    """Keep in an autograd context what `come_back` needs."""
    outputs = output if isinstance(output, tuple) else (output,)
    ctx.save_for_backward(*backward.kept(tensors, outputs))
    ctx.opforge = backward, scalars
    _mark(ctx, backward, tensors, outputs)


def _may_be_fp8(operator: Operator) -> bool:
    """Whether a tensor is in FP8 in any call."""
    choices = {scalar.name: scalar.choices for scalar in operator.scalars}
    names = {
        str(name)
        for spec in (*operator.inputs, *operator.outputs)
        for name in (operator.dtypes if spec.dtype == "T" else choices.get(spec.dtype) or (spec.dtype,))
    }
    return any(name.startswith("float8") for name in names)


def _mark(ctx: Any, backward: Backward, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
    """Say which results have no gradient: those in FP8, since rounding to 8 bits has none and what arrived for them
    would be FP8 too; and all, where no tensor that may have one asks for it.
    """
    wanted = backward.wanted(tensors)
    closed = [output for output in outputs if not wanted or is_fp8(output)]
    if closed:
        ctx.mark_non_differentiable(*closed)


def come_back(ctx: Any, incoming: Sequence[torch.Tensor], needed: Sequence[bool]) -> tuple[torch.Tensor | None, ...]:
    """One gradient for each input that needs one, in the dtype of that input: autocast has no say in it."""
    backward, scalars = ctx.opforge
    return gradients_of(backward, scalars, ctx.saved_tensors, incoming, needed)


def gradients_of(
    backward: Backward,
    scalars: Mapping[str, ScalarValue],
    kept: Sequence[torch.Tensor | None],
    incoming: Sequence[torch.Tensor],
    needed: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    """One gradient for each input that needs one, of what was kept from the forward call."""
    with torch.autocast(incoming[0].device.type, enabled=False) if _any_autocast() else contextlib.nullcontext():
        found: tuple[torch.Tensor | None, ...] = backward(kept, incoming, scalars, needed)
    return found
