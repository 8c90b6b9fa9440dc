"""What every strategy answers: which points next (`ask`), and what became of one (`tell`)."""

from __future__ import annotations

import abc
import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from opforge.core.definition.implementation import Config
from opforge.tuning.strategies.legal import Legal, place_of


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A point that passed. `seconds` is comparable with the others' of the same search."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A point that has no time. stage: "compile", "launch", "wrong" or "slow" (no answer within the limit)."""

    stage: str
    reason: str = ""


Outcome = Measured | Failure


class Strategy(abc.ABC):
    """A search over a legal set: hands out each point at most once, and learns from what is told, in any order.

    seconds   float array [points]: the time of a point; inf of a failed one, NaN where nothing was told
    """

    def __init__(self, legal: Legal, seed: int | str = 0) -> None:
        self.legal = legal
        self.draw = random.Random(f"{seed}")
        self.asked: Any = np.zeros(len(legal), dtype=bool)
        self.seconds: Any = np.full(len(legal), np.nan)
        self.told: list[int] = []

    @abc.abstractmethod
    def _next(self) -> int | None:
        """The place of the next point, of those that were not asked for; None where the strategy has no more."""

    def planned(self, n: int) -> int:
        """How many of the next `n` points depend on nothing that is still to be measured."""
        return 0

    def ask(self, n: int = 1) -> list[Config]:
        """The next points, `n` at most; fewer where the legal set is used up."""
        given: list[Config] = []
        while len(given) < n and not self.asked.all() and (place := self._next()) is not None:
            self.asked[place] = True
            given.append(self.legal.configs[place])
        return given

    def tell(self, config: Config, outcome: Outcome) -> None:
        """What became of a point, asked for or not. A point that is not in the legal set teaches nothing."""
        place = place_of(self.legal, config)
        if place is None:
            return
        self.asked[place] = True
        if np.isnan(self.seconds[place]):
            self.told.append(place)
        self.seconds[place] = outcome.seconds if isinstance(outcome, Measured) else np.inf

    def outcome(self, config: Config) -> Outcome:
        """What was told of a point; a failure where nothing was."""
        place = place_of(self.legal, config)
        seconds = float(self.seconds[place]) if place is not None else np.inf
        return Measured(seconds=seconds) if np.isfinite(seconds) else Failure(stage="launch")

    @property
    def best(self) -> Config | None:
        """The fastest point until now; None where none passed."""
        place = self.best_place
        return None if place is None else self.legal.configs[place]

    @property
    def best_place(self) -> int | None:
        """Where the fastest point stands in the legal set."""
        if not self.told or not np.isfinite(self.seconds[self.told]).any():
            return None
        return min(self.told, key=lambda place: float(self.seconds[place]))

    def left(self) -> Any:
        """The places that were not asked for: int array."""
        return np.flatnonzero(~self.asked)


class Exhaustive(Strategy):
    """Every point, in the order of the space."""

    def planned(self, n: int) -> int:
        """All of them."""
        return n

    def _next(self) -> int | None:
        return int(self.left()[0])


class Random(Strategy):
    """Every point, in a random order."""

    def planned(self, n: int) -> int:
        """All of them."""
        return n

    def _next(self) -> int | None:
        return int(self.draw.choice(self.left()))
