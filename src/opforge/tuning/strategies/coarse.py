"""Coarse to fine: a coarse grid first, then steps from its best point, one parameter at a time.

The steps go to the next value that the parameter takes in the legal set. Steps of a fixed size, as ±8, would leave it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opforge.tuning.strategies.legal import Legal, coarse
from opforge.tuning.strategies.strategy import Strategy

GRID_SHARE = 0.5
"""Of `trials`, what the coarse grid may take at most."""


class CoarseToFine(Strategy):
    """trials: how many points will be asked for, about; the coarse grid takes no more than half of them."""

    def __init__(self, legal: Legal, seed: int | str = 0, trials: int = 64) -> None:
        super().__init__(legal, seed)
        on_grid: Any = np.ones(len(legal), dtype=bool)
        for column, values in enumerate(legal.values):
            on_grid &= np.isin(legal.levels[:, column], coarse(values))
        grid = np.flatnonzero(on_grid).tolist()
        self.draw.shuffle(grid)
        self.grid: list[int] = grid[: max(1, round(trials * GRID_SHARE))]

    def planned(self, n: int) -> int:
        """What is left of the grid."""
        return min(n, sum(not self.asked[place] for place in self.grid))

    def _next(self) -> int | None:
        while self.grid:
            if not self.asked[place := self.grid.pop()]:
                return int(place)
        left = self.left()
        if (best := self.best_place) is not None:
            steps = self.legal.adjacent(best)
            steps = steps[~self.asked[steps]]
            if not steps.size:
                changes = self.legal.changes(best)[left]
                steps = left[changes == changes.min()]
            return int(self.draw.choice(steps))
        return int(self.draw.choice(left))
