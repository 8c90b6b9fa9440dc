"""A search of one space: points are asked of a strategy ahead of the measuring, so that compilers have work, and handed
out one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from opforge.core.definition.device import DeviceSpec
from opforge.core.definition.implementation import Config, Implementation, Rejected
from opforge.core.definition.operator import ScalarValue
from opforge.core.definition.shapes import Axes
from opforge.core.language.errors import UsageError
from opforge.tuning.strategies import Legal, Outcome, Strategy, Trace, place_of, strategy

AHEAD = 8
"""Points asked for ahead of the measuring, at most. The strategy knows nothing of those that are under way: with four
at once it takes 4 points more to 95 % of the optimum (docs/tuning.md).
"""


def valid_points(
    implementation: Implementation,
    axes: Axes,
    dtype: str,
    itemsize: int,
    scalars: Mapping[str, ScalarValue],
    devices: Sequence[DeviceSpec] = (),
) -> tuple[list[Config], dict[str, int]]:
    """The points of the space that every limit allows on all of `devices`, the default first; and how many points each
    broken limit refused. Without devices the limits are those of Hopper.

    The default is among them even where a limit speaks against it: it is what a call without tuning gets. A limit that
    has no value at a point (a division by zero) refuses it.
    """
    points = [implementation.default]
    refused: dict[str, int] = {}
    default = implementation.default.as_dict()
    limits = [
        _Limit(replace(implementation, limits={name: expression}), expression, axes, dtype, itemsize, scalars, bounds)
        for name, expression in implementation.limits.items()
        for bounds in ([device.bounds() for device in devices] or [{}])
    ]
    for config in implementation.configs():
        values = config.as_dict()
        if values == default:
            continue
        broken = [reason for limit in limits if (reason := limit.broken_by(config, values))]
        if broken:
            reason = f"not {' nor '.join(dict.fromkeys(broken))}"
            refused[reason] = refused.get(reason, 0) + 1
        else:
            points.append(config)
    return points, refused


class _Limit:
    """One limit. What it says depends on the parameters that it names alone: a space of 45,000 points has some hundred
    combinations of those, and is searched in a tenth of the time.
    """

    def __init__(
        self,
        implementation: Implementation,
        expression: str,
        axes: Axes,
        dtype: str,
        itemsize: int,
        scalars: Mapping[str, ScalarValue],
        bounds: Mapping[str, int | tuple[str, ...]],
    ) -> None:
        self.implementation, self.call = implementation, (axes, dtype, itemsize, scalars, bounds)
        (self.name,) = implementation.limits
        self.named = [name for name in implementation.space if re.search(rf"\b{re.escape(name)}\b", expression)]
        self.answers: dict[tuple[object, ...], str] = {}

    def broken_by(self, config: Config, values: Mapping[str, object]) -> str:
        """Its name where it refuses the point, with the reason where it has no value there; "" where it allows it."""
        key = tuple(values[name] for name in self.named)
        if key not in self.answers:
            try:
                refused = isinstance(self.implementation.allows(config, *self.call), Rejected)
                self.answers[key] = self.name if refused else ""
            except UsageError as error:
                self.answers[key] = f"{self.name} ({error})"
        return self.answers[key]


class Search:
    """Hands out each point at most once, `trials` of them at most (0: all). The default, points[0], comes first.

    given    how many were handed out, and how many an earlier run of the same search had measured
    """

    def __init__(
        self,
        points: Sequence[Config],
        trials: int,
        seed: int | str = 0,
        *,
        name: str = "model",
        traces: Sequence[Trace] = (),
    ) -> None:
        self.default = points[0]
        self.trials = min(trials or len(points), len(points))
        self.strategy: Strategy = strategy(
            name, Legal(points), seed, trials=self.trials, traces=tuple(traces), starts_at_default=True
        )
        self.queue: list[Config] = []
        self.known: set[Config] = set()
        self.last: list[Config] = []
        self.given = 0

    def ahead(self, n: int) -> list[Config]:
        """Ask the strategy until `n` points wait, as far as there are so many. Those that wait, in their order."""
        if self.default not in self.known:
            self.strategy.asked[0] = True
            self._add(self.default)
        while len(self.queue) < min(n, self.trials - self.given):
            others = self.trials - self.given - len(self.queue) > len(self.last)
            if others and (asked := self.strategy.ask(1)):
                self._add(asked[0])
            elif self.last:
                self._add(self.last.pop(0))
            else:
                break
        return list(self.queue)

    def _add(self, config: Config) -> None:
        self.known.add(config)
        self.queue.append(config)

    def planned(self) -> list[Config]:
        """What will be handed out whatever the measurements say, in order: it can be compiled ahead."""
        waiting = len(self.queue) or int(self.given == 0)
        return self.ahead(waiting + self.strategy.planned(self.trials))

    def next(
        self,
        ready: Callable[[Config], bool] = lambda config: True,
        expected: Callable[[Config], float] = lambda config: 0.0,
    ) -> Config | None:
        """The next point; None when there is none or the trials are used up. The first is the default.

        ready      whether a point is compiled: of those that wait one that is, so that nobody waits for a compiler
        expected   what its code lets expect, the less the sooner; among equals the order is the strategy's
        """
        waiting = self.ahead(1)
        if not waiting or self.given >= self.trials:
            return None
        chosen = (
            waiting[0]
            if waiting[0] == self.default
            else min((config for config in waiting if ready(config)), key=expected, default=waiting[0])
        )
        self.queue.remove(chosen)
        self.given += 1
        return chosen

    def take_back(self, config: Config) -> None:
        """A point that was handed out and not tried: it is the next once more."""
        self.queue.insert(0, config)
        self.given -= 1

    def tell(self, config: Config, outcome: Outcome) -> None:
        """What became of a point that was handed out."""
        self.strategy.tell(config, outcome)

    def recall(self, config: Config, outcome: Outcome) -> None:
        """A point that an earlier run of this search had measured: it counts, and is not handed out again."""
        self.known.add(config)
        if config in self.queue:
            self.queue.remove(config)
        self.given += 1
        self.strategy.tell(config, outcome)

    def defer(self, config: Config) -> None:
        """A point to be tried when nothing else is left; not the default, which all others are held against."""
        place = place_of(self.strategy.legal, config)
        if place is not None and config != self.default and config not in self.known:
            self.strategy.asked[place] = True
            self.known.add(config)
            self.last.append(config)

    def walk(self) -> Iterator[Config]:
        """Every point there would be without measurements."""
        while (point := self.next()) is not None:
            yield point
