"""What searches elsewhere say of a legal set: on other devices, in other dtypes, on other shapes.

The best point of another device gives 5 to 100 % of the optimum here, so this is a prior and never an answer: a mean
that the model departs from, as far as measurements here say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from opforge.core.definition.implementation import Config
from opforge.tuning.strategies.gaussian import GaussianProcess
from opforge.tuning.strategies.legal import Legal, place_of
from opforge.tuning.strategies.strategy import Measured, Outcome

MOST = 160
"""Points of a trace that are looked at: its fastest, and some of the others. A fit costs their number cubed."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What another search found, in any order. origin: where, in words."""

    origin: str
    outcomes: Sequence[tuple[Config, Outcome]]


def performance(seconds: Any) -> Any:
    """-(best time / time), from -1 for the fastest to 0: what the models predict. Failures (inf) take the worst of
    those that passed.
    """
    finite = np.isfinite(seconds)
    if not finite.any():
        return np.zeros(len(seconds))
    values = -seconds[finite].min() / np.where(finite, seconds, 1.0)
    return np.where(finite, values, values[finite].max())


def expected_performance(legal: Legal, traces: Sequence[Trace]) -> Any | None:
    """What the traces let expect at each point, averaged over them: float array [points], -1 for the fastest; None
    where no trace has a point that passed and is legal here.
    """
    expectations = [mean for trace in traces if (mean := _expectation(legal, trace)) is not None]
    return np.mean(expectations, axis=0) if expectations else None


def _expectation(legal: Legal, trace: Trace) -> Any | None:
    known: dict[int, float] = {}
    for config, outcome in trace.outcomes:
        if (place := place_of(legal, config)) is not None:
            known[place] = outcome.seconds if isinstance(outcome, Measured) else np.inf
    places, seconds = np.array(list(known), dtype=int), np.array(list(known.values()))
    if not np.isfinite(seconds).any():
        return None
    values = performance(seconds)
    if len(places) > MOST:
        order = np.argsort(values, kind="stable")
        others = np.random.default_rng(0).choice(order[MOST // 2 :], MOST - MOST // 2, replace=False)
        kept = np.concatenate([order[: MOST // 2], others])
        places, values = places[kept], values[kept]
    model = GaussianProcess(legal.features.shape[1])
    if len(places) == 1:
        # a winner alone: good near it, nothing known elsewhere
        distance = (np.abs(legal.features - legal.features[places[0]])).sum(axis=1)
        return -np.exp(-distance)
    model.learn(legal.features[places], values, steps=25)
    model.condition(legal.features[places], values)
    mean, _ = model.predict(legal.features)
    return np.clip(mean, -1.0, 0.0)
