"""The promises about gradients: those of the gradient operators or of the reference in float64, and finite differences.

What is right, and within which bound, is what verification asks of the gradient operator's own implementations: its
reference in float64 of the tensors that the call took and returned, under its own tolerance. A backward starts from
outputs as they are stored. What their rounding makes of a gradient is the same on both sides, and gets no room. It can
be much more than a gradient's own error: one of attention is dp - sum(dout * out) times a weight, so half a unit of
each out, added up with its dout, is in the whole row of dq. The outputs must be right themselves, so it is bounded.

A gradient that no operator gives is made of inputs alone, by differentiating the reference in float32: GRADIENT_FACTOR
float32 units of the largest gradient (at least 1), times the root of the terms that are added up, and one rounding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from opforge.core.definition.call_form import declared
from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.gradient import wire
from opforge.core.definition.operator import Operator
from opforge.verify.extra.contract_subject import ClauseBroken, Open, Subject, share_of_bound
from opforge.verify.oracle.expectation import Expectation, consult, half_ulp, reduction_length

GRADIENT_FACTOR = 16.0

DRAWS = 8
"""How many draws are made for one whose outputs depend on an input: packed sequences may be such that none has both
queries and keys, one draw in some two hundred.
"""


def gradients(subject: Subject) -> str:
    """Whether each floating-point input gets its gradient, for random gradients of all outputs. Raises ClauseBroken,
    and Open where no input is differentiable.
    """
    import torch

    tensors, wide, followed = _drawn(subject)
    leaves = subject.floating(tensors)
    for leaf in leaves:
        leaf.requires_grad_(True)
    outputs = subject.call(tensors)
    # what gradients are held against is made of them
    subject.require_right(tensors, outputs, "where gradients are wanted")
    seeds = [
        torch.randn(output.shape, dtype=torch.float64, device=output.device).to(output.dtype) for output in outputs
    ]
    # indices have no gradient, and nothing arrives for them
    counted = [output.is_floating_point() for output in outputs]
    got = torch.autograd.grad(_only(outputs, counted), leaves, _only(seeds, counted), allow_unused=True)
    taken, returned, incoming = ([tensor.detach().cpu() for tensor in row] for row in (tensors, outputs, seeds))
    stated = _by_operators(subject, taken, returned, incoming)
    # by differentiating the reference; None where no output depends on an input
    differentiated: tuple[Any, ...] = torch.autograd.grad(
        _only(followed, counted), wide, [seed.double() for seed in _only(incoming, counted)], allow_unused=True
    )
    names = [spec.name for spec, tensor in zip(subject.operator.inputs, tensors, strict=True) if tensor.requires_grad]
    worst = 0.0
    for name, mine, true in zip(names, got, differentiated, strict=True):
        if (mine is None) != (true is None):
            raise ClauseBroken(
                f"the gradient of {name} is {'missing' if mine is None else 'there'}, the reference's is "
                f"{'missing' if true is None else 'there'}"
            )
        if mine is not None and true is not None:
            expectation = stated.get(name) or _of_inputs_alone(subject, name, mine, true)
            worst = max(worst, share_of_bound(mine, expectation, f"the gradient of {name}"))
    return f"within {worst:.0%} of the bounds of gradients in float64"


def _only(tensors: Sequence[Any], counted: Sequence[bool]) -> list[Any]:
    return [tensor for tensor, counts in zip(tensors, counted, strict=True) if counts]


def _by_operators(
    subject: Subject, taken: Sequence[Any], returned: Sequence[Any], incoming: Sequence[Any]
) -> dict[str, Expectation]:
    """What the gradient operators say, by the names of the inputs whose gradients they give."""
    operator = subject.operator
    sources = {"input": taken, "output": returned, "incoming": incoming}
    found: dict[str, Expectation] = {}
    for gradient in subject.gradient_operators:
        wiring = wire(operator, gradient)
        given = {spec.name: sources[kind][at] for spec, (kind, at) in zip(gradient.inputs, wiring.takes, strict=True)}
        # its axes and parameters may have other names, or be fewer
        scalars = {name: subject.scalars[name] for name in wiring.scalars}
        axes = gradient.bind({name: tuple(tensor.shape) for name, tensor in given.items()}, scalars)
        asked = dataclasses.replace(subject.case, axes=axes, scalars=scalars)
        truth = consult(gradient, asked, subject.dtype, given)
        for spec, place in zip(operator.inputs, wiring.gives, strict=True):
            if place is not None:
                # a call asks the first that gives it
                found.setdefault(spec.name, truth.expectations[place])
    return found


def _drawn(subject: Subject) -> tuple[list[Any], list[Any], tuple[Any, ...]]:
    """Fresh inputs, those that are differentiable in float64 on the CPU, and the outputs of the reference made of them:
    the first of DRAWS of which one depends on them. Raises Open where no input is differentiable, or no draw is such.
    """
    for _ in range(DRAWS):
        tensors = subject.inputs()
        copies = [tensor.cpu().clone() for tensor in tensors]
        given = [tensor.double() if tensor.is_floating_point() else tensor for tensor in copies]
        leaves = subject.floating(given)
        if not leaves:
            raise Open("no input is declared differentiable")
        for leaf in leaves:
            leaf.requires_grad_(True)
        made = subject.operator.reference(*given, **subject.scalars)
        outputs = made if isinstance(made, tuple) else (made,)
        if any(output.requires_grad for output in outputs):
            return tensors, leaves, outputs
    raise Open(f"no output depended on an input in {DRAWS} draws")


def _of_inputs_alone(subject: Subject, name: str, mine: Any, true: Any) -> Expectation:
    """What a gradient is to be that no operator gives."""
    stored = str(mine.dtype).removeprefix("torch.")
    # the sums of a backward run over other axes than those of the forward: the largest gradient stands for their
    # magnitude
    root = _terms(subject, true.numel()) ** 0.5
    common = GRADIENT_FACTOR * DTYPES["float32"].epsilon * root * max(1.0, float(true.abs().max()))
    return Expectation(output=f"d{name}", dtype=stored, expected=true, bound=common + half_ulp(true, stored))


def _terms(subject: Subject, elements_of_it: int) -> float:
    """How many terms are added up for an element of a gradient. An operator that gives its errors itself states no
    length: then as many as its work, shared out among that gradient's elements, has products.
    """
    case, operator = subject.case, subject.operator
    length = reduction_length(operator, case, subject.dtype)
    if operator.tolerance.errors is None:
        return length
    scalars = operator.scalar_values(case.scalars)
    return max(length, operator.cost(case.axes, subject.dtype, scalars).flops / (2.0 * max(1, elements_of_it)))


def gradcheck(subject: Subject) -> str:
    import torch

    # not the smallest one: rows of one column and products of no terms have gradients of zero, whatever is wrong
    small = subject.small
    tensors = [
        tensor.cpu().double() if tensor.is_floating_point() else tensor.cpu()
        for tensor in subject.inputs(dataclasses.replace(small, distribution="normal", dtype=None))
    ]
    leaves = subject.floating(tensors)
    if not leaves:
        raise Open("no input is declared differentiable")
    for leaf in leaves:
        leaf.requires_grad_(True)
    scalars = declared(subject.operator, subject.operator.scalar_values(small.scalars))
    if "float64" in subject.operator.dtypes:
        through, words = subject.function, ""
    elif subject.gradient_operators:
        through, words = (
            _joined(subject.operator, subject.gradient_operators),
            f", through the reference of {' and '.join(item.name for item in subject.gradient_operators)}",
        )
    else:
        through, words = subject.operator.reference, ", through the reference that the backward differentiates"

    def asked(*given: Any) -> Any:
        # the logarithm of an empty sum is -inf, of which there are no differences: such elements are constants
        returned = through(*given, **scalars)
        outputs = returned if isinstance(returned, tuple) else (returned,)
        return tuple(output.masked_fill(~output.isfinite(), 0.0) for output in outputs)

    torch.autograd.gradcheck(asked, tensors)
    return f"finite differences in float64 agree{words}"


def _joined(operator: Operator, gradients: Sequence[Operator]) -> Callable[..., Any]:
    """The operator's reference, with the references of its gradient operators for a backward pass."""
    import torch

    def through(*tensors: Any, **scalars: Any) -> Any:
        def forward(ctx: Any, *given: Any) -> Any:
            returned = operator.reference(*given, **scalars)
            ctx.kept = (given, returned if isinstance(returned, tuple) else (returned,))
            return returned

        def backward(ctx: Any, *incoming: Any) -> Any:
            inputs, outputs = ctx.kept
            sources = {"input": inputs, "output": outputs, "incoming": incoming}
            found: list[Any] = [None] * len(inputs)
            for gradient in gradients:
                wiring = wire(operator, gradient)
                returned = gradient.reference(
                    *(sources[kind][place] for kind, place in wiring.takes),
                    **{name: scalars[name] for name in wiring.scalars},
                )
                results = returned if isinstance(returned, tuple) else (returned,)
                for at, place in enumerate(wiring.gives):
                    found[at] = found[at] if place is None else results[place]
            missing = [
                at
                for at, tensor in enumerate(inputs)
                if found[at] is None and ctx.needs_input_grad[at] and tensor.is_floating_point()
            ]
            if missing:
                # what the gradient operator says nothing about comes from the reference, as in a call
                with torch.enable_grad():
                    leaves = [
                        tensor.detach().requires_grad_(True) if at in missing else tensor.detach()
                        for at, tensor in enumerate(inputs)
                    ]
                    made = operator.reference(*leaves, **scalars)
                    made = made if isinstance(made, tuple) else (made,)
                wanted = [leaves[at] for at in missing]
                for at, value in zip(missing, torch.autograd.grad(made, wanted, incoming), strict=True):
                    found[at] = value
            return tuple(found)

        joined: Any = type(
            "Joined", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        )
        return joined.apply(*tensors)

    return through
