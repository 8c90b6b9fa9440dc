"""Adaptive pruning: a random search that stops drawing values of parameters which did badly until then."""

from __future__ import annotations

from typing import Any

import numpy as np

from opforge.tuning.strategies.strategy import Strategy

THRESHOLD = 0.1
"""A value whose best point is slower than the best of all by more than this share is pruned (seed: 0.1)."""

ENOUGH = 3
"""So many points of a value are seen before it is judged."""


class AdaptivePruning(Strategy):
    """Half of the points come from the values that are left, in a random order; the others change one parameter of the
    best. What was pruned comes last: no point is lost.
    """

    def _next(self) -> int | None:
        left = self.left()
        best = self.best_place
        kept = left if best is None else left[self._kept()[left]]
        if best is not None and len(self.told) % 2 and (near := left[self.legal.changes(best)[left] == 1]).size:
            # a neighbour may have a pruned value: that is what gives it a second chance
            kept = near
        return int(self.draw.choice(kept if kept.size else left))

    def _kept(self) -> Any:
        """Whether all values of a point are kept: bool array [points]."""
        kept: Any = np.ones(len(self.legal), dtype=bool)
        told = np.array(self.told)
        seconds = self.seconds[told]
        limit = float(seconds.min()) * (1 + THRESHOLD)
        for column, values in enumerate(self.legal.levels.T):
            tried = self.legal.levels[told, column]
            for level in np.unique(tried):
                mine = seconds[tried == level]
                if len(mine) >= ENOUGH and not mine.min() <= limit:
                    kept &= values != level
        return kept
