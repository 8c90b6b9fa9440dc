"""The promises about gradients: those of the reference in float64, and finite differences."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from opforge.core.call_form import declared
from opforge.core.dtypes import DTYPES
from opforge.core.gradient import wire
from opforge.core.operator import Operator
from opforge.verify.cases.hidden import elements
from opforge.verify.extra.contract_subject import ClauseBroken, Open, Subject
from opforge.verify.judging.elements import compare
from opforge.verify.oracle.expectation import Expectation, consult, half_ulp, reduction_length

GRADIENT_FACTOR = 16.0
DRAWS, SIGMAS = 16, 3.0
"""Draws of errors of stored outputs, and how many of their root mean squares a gradient may be off by."""


def gradients(subject: Subject) -> str:
    import torch

    operator = subject.operator
    tensors = subject.inputs()
    leaves = subject.floating(tensors)
    if not leaves:
        raise Open("no input is declared differentiable")
    for leaf in leaves:
        leaf.requires_grad_(True)
    outputs = subject.call(tensors)
    seeds = [
        torch.randn(output.shape, dtype=torch.float64, device=output.device).to(output.dtype) for output in outputs
    ]
    got = torch.autograd.grad(outputs, leaves, seeds, allow_unused=True)
    wide = [tensor.detach().cpu().double() if tensor.is_floating_point() else tensor.cpu() for tensor in tensors]
    wide_leaves = subject.floating(wide)
    for leaf in wide_leaves:
        leaf.requires_grad_(True)
    returned = operator.reference(*wide, **subject.scalars)
    references = returned if isinstance(returned, tuple) else (returned,)
    wanted = torch.autograd.grad(references, wide_leaves, [seed.cpu().double() for seed in seeds], allow_unused=True)
    worst = 0.0
    stored_outputs = _of_stored_outputs(subject, wide, references, seeds) or [0.0] * len(leaves)
    own = _own_bounds(subject, wide, references, seeds) or [None] * len(leaves)
    for number, (mine, true, kept, stated) in enumerate(zip(got, wanted, stored_outputs, own, strict=True)):
        if (mine is None) != (true is None):
            raise ClauseBroken(
                f"gradient {number} is {'missing' if mine is None else 'there'}, the reference's is "
                f"{'missing' if true is None else 'there'}"
            )
        if mine is None or true is None:
            continue
        stored = str(mine.dtype).removeprefix("torch.")
        # the sums of a backward run over other axes than those of the forward: the largest gradient stands for their
        # magnitude
        root = _terms(subject, true.numel()) ** 0.5
        common = GRADIENT_FACTOR * DTYPES["float32"].epsilon * root * max(1.0, float(true.abs().max()))
        bound = (common + half_ulp(true, stored) if stated is None else stated) + kept
        errors = compare(
            mine.detach().cpu(), Expectation(output=f"gradient {number}", dtype=stored, expected=true, bound=bound)
        )
        if not errors.agrees:
            m = errors.metrics
            raise ClauseBroken(
                f"gradient {number} at {list(m.worst_index)} is {m.worst_actual:.6g}, expected "
                f"{m.worst_expected:.6g} within {m.worst_bound:.2g}"
            )
        worst = max(worst, errors.metrics.worst_ratio)
    return f"within {worst:.0%} of the bound of the reference's gradient in float64"


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


def _own_bounds(
    subject: Subject, wide: Sequence[Any], references: Sequence[Any], seeds: Sequence[Any]
) -> list[Any] | None:
    """The bounds that the gradient operator states itself, for each floating input; None where it states none, and for
    all where there is no such operator or its tolerance is a common factor.
    """
    import torch

    operator, case = subject.operator, subject.case
    if all(gradient.tolerance.errors is None for gradient in subject.gradient_operators):
        return None
    exact = [reference.detach() for reference in references]
    sources = {"input": wide, "output": exact, "incoming": [seed.cpu().double() for seed in seeds]}
    found: list[Any] = [None] * len(wide)
    for gradient in subject.gradient_operators:
        if gradient.tolerance.errors is None:
            continue
        wiring = wire(operator, gradient)
        named = {
            spec.name: sources[kind][place].detach()
            for spec, (kind, place) in zip(gradient.inputs, wiring.takes, strict=True)
        }
        # its axes and parameters may have other names, or be fewer
        shapes = {name: tuple(tensor.shape) for name, tensor in named.items()}
        own = {name: subject.scalars[name] for name in wiring.scalars}
        asked = dataclasses.replace(case, axes=gradient.bind(shapes, own), scalars=own)
        with torch.no_grad():
            truth = consult(gradient, asked, subject.dtype, named)
        for at, place in enumerate(wiring.gives):
            if place is not None:
                found[at] = truth.expectations[place].bound
    leaves = [id(leaf) for leaf in subject.floating(wide)]
    return [bound for bound, tensor in zip(found, wide, strict=True) if id(tensor) in leaves]


def _of_stored_outputs(
    subject: Subject, wide: Sequence[Any], references: Sequence[Any], seeds: Sequence[Any]
) -> list[Any] | None:
    """How far each gradient moves when the outputs that it is computed from are stored in their dtype: SIGMAS times the
    root mean square, of each element, over DRAWS draws of errors within a unit in the last place (half for rounding, as
    much for what a kernel's own 16-bit factors leave); None where it is computed from inputs alone. Of one rounding
    alone an element may by chance hardly move: gradients by the reference itself, from outputs that were rounded a
    little differently, were refused in 8 of 60 tensors (attention_varlen, bfloat16). Asked of the gradient operator's
    reference on both sides, so that a wrong formula earns nothing.
    """
    import torch

    operator = subject.operator
    keeping = [gradient for gradient in subject.gradient_operators if wire(operator, gradient).keeps_outputs]
    if not keeping:
        return None

    def results(gradient: Operator, outputs: Sequence[Any]) -> tuple[Any, ...]:
        wiring = wire(operator, gradient)
        sources = {"input": wide, "output": outputs, "incoming": [seed.cpu().double() for seed in seeds]}
        with torch.no_grad():
            returned = gradient.reference(
                *(sources[kind][place] for kind, place in wiring.takes),
                **{name: subject.scalars[name] for name in wiring.scalars},
            )
        return returned if isinstance(returned, tuple) else (returned,)

    exact = [reference.detach() for reference in references]
    kinds = [getattr(torch, spec.dtype_for(subject.dtype, subject.scalars)) for spec in operator.outputs]

    def stored() -> list[Any]:
        """The outputs with a draw of errors; what is whole, infinite or 0 has none."""
        found = []
        for kind, value in zip(kinds, exact, strict=True):
            if kind.is_floating_point:
                unit = torch.ldexp(torch.full_like(value, torch.finfo(kind).eps), torch.frexp(value).exponent - 1)
                value = torch.where(
                    value.isfinite() & (value != 0), value + (2 * torch.rand_like(value) - 1) * unit, value
                )
            found.append(value)
        return found

    moved: list[Any] = [0.0] * len(wide)
    for gradient in keeping:
        right = results(gradient, exact)
        drawn = [results(gradient, stored()) for _ in range(DRAWS)]
        for at, place in enumerate(wire(operator, gradient).gives):
            if place is not None:
                squares = sum((one[place] - right[place]).square() for one in drawn)
                moved[at] = SIGMAS * (squares / DRAWS).sqrt()
    leaves = [id(leaf) for leaf in subject.floating(wide)]
    return [kept for kept, tensor in zip(moved, wide, strict=True) if id(tensor) in leaves]


def gradcheck(subject: Subject) -> str:
    import torch

    small = min(
        (
            case
            for case in subject.operator.cases
            if elements(subject.operator, case) > 1
            and all(case.scalars.get(scalar.name, True) for scalar in subject.operator.presence)
        ),
        key=lambda case: elements(subject.operator, case),
    )
    tensors = [
        tensor.cpu().double() if tensor.is_floating_point() else tensor.cpu()
        for tensor in subject.inputs(dataclasses.replace(small, distribution="normal", layout="contiguous", dtype=None))
    ]
    leaves = subject.floating(tensors)
    if not leaves:
        raise Open("no input is declared differentiable")
    for leaf in leaves:
        leaf.requires_grad_(True)
    scalars = declared(subject.operator, subject.operator.scalar_values(small.scalars))
    if "float64" in subject.operator.dtypes:
        through, words = subject.function, ""
    elif subject.gradient is not None:
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
