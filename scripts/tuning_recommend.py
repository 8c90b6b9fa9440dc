"""How often `opforge recommend` is right, for scripts/tuning.py: no shape and no operator judges what was fitted to it.

Each measured call of the evidence that ships is predicted from the operator's other shapes. The numbers that the model
was fitted with (opforge.roofline.time_model.Weights) are chosen for each operator on the calls of the others alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from opforge.core.device import DeviceSpec
from opforge.machine import descriptors
from opforge.registry import load
from opforge.roofline.time_model import WEIGHTS, Weights
from opforge.store.shipped import shipped
from opforge.tuning.recommend import HeldOut, held_out

SETTINGS: Sequence[Weights] = (
    WEIGHTS,
    *(Weights(*each) for each in itertools.product((1, 4, 8), (0.5, 1.25), (0.0, 0.03))),
)
"""The model's weights, as they might be."""

Found = Mapping[Weights, Mapping[str, HeldOut]]
"""By weights and dtype."""


def recommend_figures() -> None:
    """Print the share of calls within 5 % of the true winner: for each operator and dtype, and in all."""
    for name, spec in descriptors().items():
        found = _found(name, spec)
        if not found:
            continue
        print(f"recommend, {name}: calls whose predicted winner is within 5 % of the true one")
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


def _found(device: str, spec: DeviceSpec) -> dict[str, Found]:
    registry = load()
    found: dict[str, Found] = {}
    for name in registry.names():
        operator, facts = registry.operator(name), shipped(name, device)
        each = {
            setting: {
                dtype: said
                for dtype in operator.dtypes
                if (said := held_out(registry, operator, dtype, facts, spec, setting)) is not None
            }
            for setting in SETTINGS
        }
        if each[WEIGHTS]:
            found[name] = each
    return found


def _right(each: Mapping[str, HeldOut]) -> float:
    return sum(item.right * item.shapes for item in each.values())
