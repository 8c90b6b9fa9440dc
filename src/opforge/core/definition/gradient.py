"""How an operator joins the one that computes its gradients: by the names of their tensors.

softmax: x -> y        softmax_backward: y, dy -> dx

An input of the gradient operator is an input or an output of the forward operator, or "d" and the name of an output:
the gradient that arrives for it. An output is "d" and the name of an input. Scalars are joined by their names too.
"""

from __future__ import annotations

from dataclasses import dataclass

from opforge.core.definition.operator import Operator
from opforge.core.language.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """What an operator's gradient operator is given, and what becomes of its results.

    takes     for each of its inputs, where that comes from: ("input" | "output" | "incoming", position among those of
              the forward operator)
    gives     for each input of the forward operator, the position of its gradient among the results; None where there
              is none
    scalars   the scalars it shares with the forward operator
    """

    takes: tuple[tuple[str, int], ...]
    gives: tuple[int | None, ...]
    scalars: tuple[str, ...]


def wire(forward: Operator, gradient: Operator) -> Wiring:
    """The wiring of `gradient` to `forward`. Raises UsageError for a tensor or scalar whose name says nothing."""
    sources = {spec.name: ("input", place) for place, spec in enumerate(forward.inputs)}
    sources |= {spec.name: ("output", place) for place, spec in enumerate(forward.outputs)}
    sources |= {f"d{spec.name}": ("incoming", place) for place, spec in enumerate(forward.outputs)}
    for spec in gradient.inputs:
        if spec.name not in sources:
            raise UsageError(
                f"{gradient.name} takes {spec.name!r}, which is nothing that {forward.name} has: "
                f"{', '.join(sources)}. Rename that input."
            )
    results = {spec.name: place for place, spec in enumerate(gradient.outputs)}
    wanted = [f"d{spec.name}" for spec in forward.inputs]
    strange = [name for name in results if name not in wanted]
    if strange:
        raise UsageError(
            f"{gradient.name} gives {', '.join(strange)}; the gradients of {forward.name} are called "
            f"{', '.join(wanted)}. Rename that output."
        )
    known = {scalar.name for scalar in forward.scalars}
    return Wiring(
        takes=tuple(sources[spec.name] for spec in gradient.inputs),
        gives=tuple(results.get(name) for name in wanted),
        scalars=tuple(scalar.name for scalar in gradient.scalars if scalar.name in known),
    )
