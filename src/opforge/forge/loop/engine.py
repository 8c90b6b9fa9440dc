"""What every engine answers, whatever it is: one strategy for a round, and the candidates that try it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from opforge.core.definition.implementation import Config, Implementation
from opforge.core.evidence.comparison import FASTER, UNSURE, Comparison
from opforge.core.evidence.diagnosis import Diagnosis
from opforge.core.evidence.optimization import OptimizationRound, Tried
from opforge.forge.loop.patience import NOTE

NEAR = 5.0
"""Ratios below may be the machine's doing: while another process has a processor, a kernel on two threads takes several
times as long as on one (2 cores, 3.9 times, where it is 1.7 times as fast alone)."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A candidate: the whole text of the file that it would be.

    change   what it changes, in words; claims: what it says that it touches (core.evidence.optimization)
    broken   why there is no text: a model that gave none
    """

    text: str
    change: str
    claims: str
    tokens: int = 0
    repair: int = 0
    broken: str = ""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Where the loop stands before a round.

    text, implementation   the best until now; the implementation is of that text
    rounds                 of this run, the start among them, oldest first
    past                   of other runs: what patterns are counted from
    described              the operator in words: definition, shapes, dtype
    allows                 whether a config of an implementation is worth trying on the workload
    """

    text: str
    implementation: Implementation
    diagnosis: Diagnosis
    rounds: Sequence[OptimizationRound]
    past: Sequence[OptimizationRound]
    family: str
    described: str
    allows: Callable[[Implementation, Config], bool]

    def seen(self, *, again: bool = False) -> frozenset[str]:
        """Texts that were tried in this run and are not tried again. What a comparison could not tell (`unanswered`)
        was not answered, and is not among them; `again`: nor is what was tried once and was not hopeless.
        """
        times = Counter(tried.source for one in self.rounds for tried in one.tried)
        unsure = {
            tried.source
            for one in self.rounds
            if one.comparison is not None and unanswered(one.comparison)
            for tried in one.tried
        }
        near = {
            tried.source
            for one in self.rounds
            for tried in one.tried
            if again
            and times[tried.source] == 1
            and tried.ratio is not None
            and (tried.ratio < NEAR or NOTE in tried.reason)
        }
        return frozenset(set(times) - unsure - near)


def unanswered(comparison: Comparison) -> bool:
    """Whether a comparison tells nothing about its sides: UNSURE, or not FASTER while others had the processors."""
    disturbed = any(one.startswith(NOTE) for one in comparison.notes)
    return comparison.outcome == UNSURE or (disturbed and comparison.outcome != FASTER)


Variants = Generator[Variant, Tried, None]
"""Gives candidates, and is sent what became of each: an engine may repair."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """One strategy, why it should help, what like rounds on record gained (None: there are none), and candidates."""

    strategy: str
    hypothesis: str
    expected: float | None
    variants: Variants


class Engine(Protocol):
    """Where candidates come from. All of them end in the same trial."""

    name: str

    def propose(self, situation: Situation) -> Proposal | None:
        """What the next round tries; None where nothing is left. Raises ModelError, UsageError."""
