"""Strategies of a search: `ask(n)` for points of the legal set, `tell(point, outcome)` what became of one."""

from collections.abc import Callable

from opforge.tuning.strategies.coarse import CoarseToFine as CoarseToFine
from opforge.tuning.strategies.legal import Legal as Legal, place_of as place_of
from opforge.tuning.strategies.model import ModelBased as ModelBased
from opforge.tuning.strategies.objectives import (
    Objectives as Objectives,
    pareto_front as pareto_front,
    weighted_scores as weighted_scores,
)
from opforge.tuning.strategies.prior import Trace as Trace
from opforge.tuning.strategies.pruning import AdaptivePruning as AdaptivePruning
from opforge.tuning.strategies.strategy import (
    Exhaustive as Exhaustive,
    Failure as Failure,
    Measured as Measured,
    Outcome as Outcome,
    Random as Random,
    Strategy as Strategy,
)

NAMES = ("model", "coarse", "pruning", "random", "exhaustive")
"""What `opforge tune --strategy` takes, the default first."""


def strategy(
    name: str,
    legal: Legal,
    seed: int | str = 0,
    *,
    trials: int = 64,
    traces: tuple[Trace, ...] = (),
    starts_at_default: bool = False,
) -> Strategy:
    """A strategy by its name. `trials`: how many points will be asked for, about. Raises KeyError for another name."""
    makers: dict[str, Callable[[], Strategy]] = {
        "model": lambda: ModelBased(legal, seed, traces, starts_at_default),
        "coarse": lambda: CoarseToFine(legal, seed, trials),
        "pruning": lambda: AdaptivePruning(legal, seed),
        "random": lambda: Random(legal, seed),
        "exhaustive": lambda: Exhaustive(legal, seed),
    }
    return makers[name]()
