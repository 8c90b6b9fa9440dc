"""The default search: a Gaussian process and expected improvement, and every second point a neighbour of the best.

What is modelled is the speed relative to the best until then, not the time: the slow points of a space differ by
factors that say nothing of the fast ones. A failure counts as the slowest point that passed, so that the model keeps
away from where they are. Candidates are a random part of the legal set, drawn anew now and then, and all neighbours of
the best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from opforge.tuning.strategies.gaussian import GaussianProcess, expected_improvement
from opforge.tuning.strategies.legal import Legal
from opforge.tuning.strategies.prior import Trace, expected_performance, performance
from opforge.tuning.strategies.strategy import Strategy

SPREAD = 8
"""Points of the first sample, spread over the space. Fewer than two points that passed are no ground for a model."""
CANDIDATES = 1500
"""Points of the legal set that one choice looks at, besides the neighbours of the best."""
REFIT = 1.2
"""The hyperparameters are fitted again when there are so many times as many points."""
DRAWN = 64
"""A point of the first sample is the farthest from the others among so many drawn at random."""
MODELLED = 300
"""Points that the model sees: the fastest half of them, and the newest. A fit costs their number cubed."""
PRIOR_VARIANCE, PRIOR_WEIGHT = 0.02, 3.0
"""Of the speed relative to the best, around what a prior expects; and the number of measurements that it is worth."""


class ModelBased(Strategy):
    """Cold, or warm where there are traces of searches elsewhere.

    starts_at_default   the legal set's first point is the default: it comes first, and its neighbours are every second
                        point of the first sample, because someone chose it who measured
    """

    def __init__(
        self,
        legal: Legal,
        seed: int | str = 0,
        traces: Sequence[Trace] = (),
        starts_at_default: bool = False,
    ) -> None:
        super().__init__(legal, seed)
        self.traces = tuple(traces)
        self.expected: Any | None = None
        self.starts_at_default = starts_at_default
        self.features = legal.features
        self.model = GaussianProcess(self.features.shape[1])
        self.refit_at = 0
        self.drawn: Any = np.zeros(0, dtype=int)
        self.polish = False

    def planned(self, n: int) -> int:
        """What is left of the first sample."""
        warm = self.traces or self.expected is not None
        return 0 if warm else max(0, min(n, SPREAD - int(self.asked.sum())))

    def _look_at_traces(self) -> None:
        """Only when a second point is asked for: it takes a second, and most searches of a job end at their default."""
        self.expected = expected_performance(self.legal, self.traces)
        self.traces = ()
        if self.expected is not None:
            self.features = np.column_stack([self.features, self.expected.astype(np.float32)])
            self.model = GaussianProcess(self.features.shape[1])

    def _next(self) -> int | None:
        given = int(self.asked.sum())
        if given == 0 and self.starts_at_default:
            return 0
        if self.traces:
            self._look_at_traces()
        passed = int(np.isfinite(self.seconds[self.told]).sum())
        if self.expected is None and (given < SPREAD or passed < 2):
            return self._spread(given)
        if self.expected is not None and passed == 0:
            left = self.left()
            known = np.array(self.told, dtype=int)
            # what failed where the prior expected much: as far from it as from any other
            shy = np.zeros(len(left))
            for place in known:
                shy += np.exp(-2 * np.abs(self.features[left] - self.features[place]).sum(axis=1))
            return int(left[(self.expected[left] + shy).argmin()])
        return self._improving()

    def _spread(self, given: int) -> int:
        left = self.left()
        drawn = np.array(self.draw.sample(left.tolist(), min(len(left), DRAWN)))
        if not given:
            return int(drawn[0])
        if self.starts_at_default and given % 2 and (near := drawn[self.legal.changes(0)[drawn] == 1]).size:
            drawn = near
        taken = self.features[np.flatnonzero(self.asked)]
        apart = ((self.features[drawn][:, None] - taken[None]) ** 2).sum(axis=2).min(axis=1)
        return int(drawn[apart.argmax()])

    def _improving(self) -> int:
        best = self.best_place
        assert best is not None
        told = np.array(self._modelled())
        values = performance(self.seconds[told])
        expected = self._mean(told, values)
        residual = values - expected[told]
        if len(self.told) >= self.refit_at or not self.drawn.size:
            if len(told) > 1:
                self.model.learn(self.features[told], residual)
            self.refit_at = max(len(self.told) + 1, math.ceil(len(self.told) * REFIT))
            everywhere = range(len(self.legal))
            self.drawn = np.array(self.draw.sample(everywhere, min(len(everywhere), CANDIDATES)))
        pending = np.flatnonzero(self.asked & np.isnan(self.seconds))
        self._condition(told, residual)
        if pending.size:
            # what is under way counts as what the model believes of it: its surroundings are not asked for twice
            believed, _ = self.model.predict(self.features[pending])
            told, residual = np.concatenate([told, pending]), np.concatenate([residual, believed])
            self._condition(told, residual)
        near = np.flatnonzero((self.legal.changes(best) == 1) & ~self.asked)
        fresh = self.drawn[~self.asked[self.drawn]]
        self.polish = not self.polish
        places = near if self.polish and near.size else np.union1d(fresh, near)
        if not places.size:
            places = self.left()
        mean, deviation = self.model.predict(self.features[places])
        gain = expected_improvement(mean + expected[places], deviation, -1.0)
        # where nothing is expected any more, what is least known comes first
        return int(places[(gain + 1e-6 * deviation).argmax()])

    def _modelled(self) -> list[int]:
        if len(self.told) <= MODELLED:
            return self.told
        fastest = sorted(self.told, key=lambda place: float(self.seconds[place]))[: MODELLED // 2]
        chosen = set(fastest)
        newest = [place for place in reversed(self.told) if place not in chosen]
        return fastest + newest[: MODELLED - len(fastest)]

    def _mean(self, told: Any, values: Any) -> Any:
        """What is expected before the model speaks: float array [points]. The prior's slope is learnt, from 1 on."""
        if self.expected is None:
            return np.zeros(len(self.legal))
        prior = self.expected[told]
        centred = prior - prior.mean()
        spread = float(centred @ centred)
        slope = (PRIOR_WEIGHT * PRIOR_VARIANCE + float(centred @ (values - values.mean()))) / (
            PRIOR_WEIGHT * PRIOR_VARIANCE + spread
        )
        return min(max(slope, 0.0), 1.5) * self.expected

    def _condition(self, told: Any, residual: Any) -> None:
        self.model.condition(self.features[told], residual)
        if self.expected is not None:
            count = len(residual)
            self.model.variance = (self.model.variance * count + PRIOR_VARIANCE * PRIOR_WEIGHT) / (count + PRIOR_WEIGHT)
