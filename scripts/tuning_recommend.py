"""How often `opforge recommend` is right, for scripts/tuning.py: no shape and no operator judges what was fitted to it.

Each measured call of the evidence that ships is predicted from the operator's other shapes. The numbers that the model
was fitted with (opforge.roofline.time_model.Weights) are chosen for each operator on the calls of the others alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from opforge.core.definition.device import DeviceSpec
from opforge.machine import descriptors
from opforge.registry import load
from opforge.roofline.time_model import WEIGHTS, Weights
from opforge.store.shipped import shipped
from opforge.tuning.recommend import HeldOut, held_out, relatives_of

SETTINGS: Sequence[Weights] = (
    WEIGHTS,
    *(Weights(*each) for each in itertools.product((1, 4, 8), (0.5, 1.25), (0.0, 0.03))),
)
"""The model's weights, as they might be."""

Found = Mapping[Weights, Mapping[str, HeldOut]]
"""By weights and dtype."""


def recommend_figures() -> None:
    """Print the share of calls within 5 % of the true winner: for each operator and dtype, and in all."""
    ways = [(name, spec, know) for name, spec in descriptors().items() for know in (False, True)]
    for name, spec, know in ways:
        found = _found(name, spec, know)
        if not found:
            continue
        words = "known" if know else "left out"
        print(f"recommend, {name}: calls whose predicted winner is within 5 % of the true one; times of a device that")
        print(f"runs the same code, of the very shape, are {words}")
        used: list[tuple[HeldOut, HeldOut]] = []
        for operator, settings in found.items():
            others = [item for other, item in found.items() if other != operator]
            chosen = max(SETTINGS, key=lambda setting: sum(_right(item[setting]) for item in others))
            if not others:
                chosen = WEIGHTS
            for dtype, fixed in settings[WEIGHTS].items():
                fair = settings[chosen][dtype]
                used.append((fixed, fair))
                print(
                    f"  {operator + ' ' + dtype:32}{fixed.right:.3f} of {fixed.shapes}, at worst {fixed.worst:.2f}; "
                    f"weights chosen elsewhere {fair.right:.3f}"
                )
        ours, theirs = (sum(each[place].right * each[place].shapes for each in used) for place in (0, 1))
        calls = sum(each[0].shapes for each in used)
        print(f"  in all {ours / calls:.3f} of {calls}; weights chosen on the other operators {theirs / calls:.3f}")


def _found(device: str, spec: DeviceSpec, know: bool) -> dict[str, Found]:
    registry = load()
    found: dict[str, Found] = {}
    alike = [other for other in descriptors().values() if other.is_sibling_of(spec)]
    if know and not any(shipped(name, other.name) for other in alike for name in registry.names()):
        return {}
    for name in registry.names():
        operator, facts = registry.operator(name), shipped(name, device)
        siblings = [(other, theirs) for other in alike if (theirs := shipped(name, other.name))]
        relatives = relatives_of(registry, operator, lambda name: shipped(name, device))
        each = {
            setting: {
                dtype: said
                for dtype in operator.dtypes
                if (said := held_out(registry, operator, dtype, facts, spec, setting, siblings, know, relatives))
                is not None
            }
            for setting in SETTINGS
        }
        if each[WEIGHTS]:
            found[name] = each
    return found


def _right(each: Mapping[str, HeldOut]) -> float:
    return sum(item.right * item.shapes for item in each.values())
