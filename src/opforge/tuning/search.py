"""Which point to try next: a plain search. All of them where the trials allow; else a sample, then the neighbours of the best.

Replayed on 21 measured spaces, a random sample needs some 190 trials to come within 5 % of the best point; changing one
parameter of the best at a time saves most of them. The default was chosen by someone who measured: every second point of
the sample differs from it in one parameter. Nothing here models the space.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest

from opforge.core.implementation import Config, Implementation, Rejected
from opforge.core.operator import ScalarValue
from opforge.core.shapes import Axes

SAMPLED = 0.5
"""Of the trials, what goes into the sample before the best point's neighbours are tried."""


def valid_points(implementation: Implementation, axes: Axes, dtype: str, itemsize: int, scalars: Mapping[str, ScalarValue]) -> tuple[list[Config], dict[str, int]]:
    """The points of the space that every limit allows, the default first; and how many points each broken limit refused.

    The default is among them even where a limit speaks against it: it is what a call without tuning gets.
    """
    points = [implementation.default]
    refused: dict[str, int] = {}
    for config in implementation.configs():
        if _same(config, implementation.default):
            continue
        answer = implementation.allows(config, axes, dtype, itemsize, scalars)
        if isinstance(answer, Rejected):
            refused[answer.reason] = refused.get(answer.reason, 0) + 1
        else:
            points.append(config)
    return points, refused


def _same(one: Config, other: Config) -> bool:
    return one.as_dict() == other.as_dict()


def _changes(values: Mapping[str, object], config: Config) -> int:
    """In how many parameters a point differs from these values."""
    return sum(values.get(name) != value for name, value in config.values)


class Search:
    """Hands out each point at most once, `trials` of them at most (0: all)."""

    def __init__(self, points: Sequence[Config], trials: int, draw: random.Random) -> None:
        rest = list(points[1:])
        draw.shuffle(rest)
        default = points[0].as_dict()
        near = [config for config in rest if _changes(default, config) == 1]
        far = [config for config in rest if _changes(default, config) != 1]
        self.left = [points[0], *(config for config in chain(*zip_longest(near, far)) if config is not None)]
        self.trials = min(trials or len(points), len(points))
        self.sampled = self.trials if self.trials == len(points) else max(1, round(self.trials * SAMPLED))
        self.given = 0

    def planned(self) -> list[Config]:
        """What will be handed out whatever the measurements say, in order: it can be compiled ahead."""
        return self.left[: max(0, self.sampled - self.given)]

    def near(self, best: Config) -> list[Config]:
        """The points left that differ from `best` in one parameter."""
        values = best.as_dict()
        return [config for config in self.left if _changes(values, config) == 1]

    def next(self, best: Config | None, ready: Callable[[Config], bool] = lambda config: True) -> Config | None:
        """The next point; None when there is none or the trials are used up. The first is the default.

        ready   whether a point is compiled: of those that are to come anyhow the first that is, so that nobody waits for a compiler
        """
        if self.given >= self.trials or not self.left:
            return None
        near = self.near(best) if best is not None and self.given >= self.sampled else []
        possible = near or self.left[: max(1, self.sampled - self.given)]
        chosen = possible[0] if self.given == 0 else next((config for config in possible if ready(config)), possible[0])
        self.left.remove(chosen)
        self.given += 1
        return chosen

    def walk(self) -> Iterator[Config]:
        """Every point there would be without measurements."""
        while (point := self.next(None)) is not None:
            yield point
