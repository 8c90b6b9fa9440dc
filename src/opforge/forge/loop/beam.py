"""The beam of a language model's second phase: which kernels of a run the next candidates are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opforge.core.evidence.optimization import ROUND, OptimizationRound
from opforge.core.evidence.verdict import Pass

WIDTH, CHILDREN, ROUNDS = 2, 2, 5
"""Kernels that are gone on from, candidates made of each, and rounds of that at most."""
STRATEGY = "beam of a model's candidates"


@dataclass(frozen=True)
class Parent:
    """A kernel that passed: its text, and its seconds as seen in this run (None: not timed)."""

    text: str
    seconds: float | None


def parents(best: str, rounds: Sequence[OptimizationRound], width: int = WIDTH) -> tuple[Parent, ...]:
    """The best of a run, then the fastest others of its candidates that passed; () where no candidate has passed yet.

    The times of candidates are their ratios times the best's of then: they choose who is gone on from and no more.
    """
    seconds: dict[str, float] = {}
    best_s: float | None = None
    for one in rounds:
        for tried in one.tried:
            if isinstance(tried.verdict, Pass) and tried.ratio is not None and tried.source and best_s is not None:
                seconds[tried.source] = min(tried.ratio * best_s, seconds.get(tried.source, float("inf")))
        best_s = one.best_s if one.best_s is not None else best_s
    if not seconds:
        return ()
    others = sorted((time, text) for text, time in seconds.items() if text != best)
    return (Parent(best, best_s), *(Parent(text, time) for time, text in others))[:width]


def rounds_done(rounds: Sequence[OptimizationRound]) -> int:
    """Rounds of the beam in a run."""
    return sum(one.stage == ROUND and one.strategy == STRATEGY for one in rounds)
