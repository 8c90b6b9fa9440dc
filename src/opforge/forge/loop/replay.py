"""The engine of a replay: the candidates of a run on record once more, in their order. The trials are real."""

from __future__ import annotations

from collections.abc import Sequence

from opforge.core.evidence.optimization import ROUND, OptimizationRound
from opforge.core.language.errors import UsageError
from opforge.forge.loop.engine import Proposal, Situation, Variant, Variants


class Replay:
    """Rounds of another run, tried again: verdicts must agree; times are of here and now."""

    name = "replay"

    def __init__(self, rounds: Sequence[OptimizationRound]) -> None:
        """rounds: of one run. Raises UsageError where there are none to replay."""
        self.rounds = [one for one in rounds if one.stage == ROUND]
        if not self.rounds:
            raise UsageError("The run has no round to replay. See the runs with: opforge log NAME --json")

    def propose(self, situation: Situation) -> Proposal | None:
        """The next recorded round; None after the last."""
        done = sum(one.stage == ROUND for one in situation.rounds)
        if done >= len(self.rounds):
            return None
        old = self.rounds[done]
        return Proposal(strategy=old.strategy, hypothesis=old.hypothesis, expected=old.expected, variants=_again(old))


def _again(old: OptimizationRound) -> Variants:
    for tried in old.tried:
        broken = tried.reason if not tried.source else ""
        yield Variant(text=tried.source, change=tried.change, claims=tried.kind, repair=tried.repair, broken=broken)


def differences(old: Sequence[OptimizationRound], new: Sequence[OptimizationRound]) -> tuple[str, ...]:
    """Where the verdicts of a replay are not those on record, a sentence each; none where all agree."""
    found = []
    for one, other in zip(_rounds(old), _rounds(new), strict=False):
        for before, after in zip(one.tried, other.tried, strict=False):
            was, now = _verdict(before.verdict, before.reason), _verdict(after.verdict, after.reason)
            if was != now:
                found.append(f"round {one.number}, {before.change}: {was} on record, {now} now")
    missing = len(_rounds(old)) - len(_rounds(new))
    if missing > 0:
        found.append(f"{missing} rounds on record were not reached")
    return tuple(found)


def _rounds(rounds: Sequence[OptimizationRound]) -> list[OptimizationRound]:
    return [one for one in rounds if one.stage == ROUND]


def _verdict(verdict: object, reason: str) -> str:
    """What became of a candidate, without its time: which of them were too slow to be verified is the machine's."""
    if verdict is None:
        return "refused" if reason.startswith("refused") else "no text"
    passed = type(verdict).__name__ == "Pass" or "right on this workload" in reason
    return "right" if passed else type(verdict).__name__
