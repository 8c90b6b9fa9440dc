"""What other devices say of one that was not measured, for scripts/tuning.py: a line for each, and what limits it.

Four choices of a point, as shares of the device's own optimum: by what cold searches of 100 points on the others let
expect (what `opforge tune` begins with), by the mean over the others measured whole, by that mean over the others of
its own maker where there are any, and by the one other device whose own optimum is the best here. Nobody knows
beforehand which one that is: what lies between it and the rest is what the devices do not have in common, and no search
elsewhere tells it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from opforge.core.definition.implementation import Config
from opforge.tuning.replay import MeasuredSpace
from opforge.tuning.strategies import Measured


def elsewhere_figures(spaces: Sequence[MeasuredSpace], searched: Mapping[str, float]) -> None:
    """Print a line for each device. searched: the share that searches elsewhere lead to, by the space's name."""
    speeds = {space.name: _speeds(space) for space in spaces}
    print(
        "predicted from the other devices, share of the optimum: by their searches, by all of their points, by all of"
    )
    print("those of its own maker, by the optimum of the one that fits best, and of the one that fits worst")
    makers: list[float] = []
    for space in spaces:
        whole, of_maker, singles = _from_whole(space, spaces, speeds)
        makers.append(of_maker)
        best, worst = (choice(singles, key=lambda name: singles[name]) for choice in (max, min))
        print(
            f"  {space.name:34}{searched[space.name]:7.3f}{whole:7.3f}{of_maker:7.3f}{singles[best]:7.3f} "
            f"{best.split('@')[-1]}, "
            f"{singles[worst]:.3f} {worst.split('@')[-1]}",
            flush=True,
        )
    print(
        f"  by all points of its own maker's: mean {np.mean(makers):.3f}, {sum(each >= 0.9 for each in makers)} of",
        end="",
    )
    print(f" {len(makers)} at least .900", flush=True)


def maker_of(name: str) -> str:
    """The maker of a public space's device: AMD's are Instinct and Radeon Pro (MI250X, W6600), others NVIDIA's."""
    return "amd" if name.split("@")[-1].startswith(("MI", "W")) else "nvidia"


def _speeds(space: MeasuredSpace) -> dict[Config, float]:
    """Speed of each point beside the optimum; 0 where it failed."""
    outcomes = {config: space.outcome(config) for config in space.legal.configs}
    return {
        config: space.best_s / said.seconds if isinstance(said, Measured) else 0.0 for config, said in outcomes.items()
    }


def _from_whole(
    space: MeasuredSpace, spaces: Sequence[MeasuredSpace], speeds: Mapping[str, Mapping[Config, float]]
) -> tuple[float, float, dict[str, float]]:
    """The share that the best mean over the others gives, that over the others of its maker (of all, where there is
    none), and what the optimum of each of them gives.
    """
    others = [item.name for item in spaces if item.kernel == space.kernel and item is not space]
    own = speeds[space.name]
    shared = [config for config in own if all(config in speeds[name] for name in others)]
    table = np.array([[speeds[name][config] for config in shared] for name in others])
    here = np.array([own[config] for config in shared])
    singles = {name: float(here[int(np.argmax(row))]) for name, row in zip(others, table, strict=True)}
    alike = [row for name, row in zip(others, table, strict=True) if maker_of(name) == maker_of(space.name)]
    mean, of_maker = (float(here[int(np.argmax(np.mean(rows, axis=0)))]) for rows in (table, alike or table))
    return mean, of_maker, singles
