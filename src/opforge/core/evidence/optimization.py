"""One round of an optimisation as a fact: what was tried and why, what it came to, and what was decided."""

from __future__ import annotations

from dataclasses import dataclass

from opforge.core.evidence.comparison import Comparison
from opforge.core.evidence.diagnosis import Diagnosis
from opforge.core.evidence.verdict import Verdict

START, ROUND, END = "start", "round", "end"
KEPT, ROLLED_BACK, STOPPED = "kept", "rolled back", "stopped"
PARAMETERS, LOGIC, INTERFACE = "parameters", "logic", "interface"
"""What a change may touch, as the seeds classify it: tunables alone; the kernel's code; what callers see."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One candidate of a round.

    change     what it changes, in words; `kind` one of PARAMETERS, LOGIC, INTERFACE
    diff       against the best until then, unified
    verdict    what became of it on the operator's cases and on the workload; None where it was refused before it ran
    ratio      its time over that of the best, interleaved, by which candidates were ranked; None where it was not timed
    reason     why it was refused, failed or not looked at any further; "" for one that was timed on a still machine
    tokens     that a language model took for it, question and answer; 0 elsewhere
    source     its whole text: what `--engine replay` tries again
    repair     how many answers of the model came before this one, of the same attempt
    """

    change: str
    kind: str
    diff: str
    verdict: Verdict | None
    ratio: float | None
    reason: str
    tokens: int
    source: str
    repair: int = 0


@dataclass(frozen=True, kw_only=True)
class OptimizationRound:
    """A round, the start of an optimisation, or its end; they share `run`. Rounds are never changed.

    stage        START (number 0), ROUND, END
    options      what was asked for, by name: a run that was cut short goes on only with the same
    start_sha256 of the text that the optimisation began with
    family       of the kernel: what patterns are counted by
    strategy     the one strategy of the round; "" for start and end
    hypothesis   why it should help; expected: the gain that records of like rounds had (1.3), None without any
    comparison   the best candidate against the best until then, interleaved, on fresh inputs (of an
                 END: the best against the start); None where none came so far
    decision     KEPT, ROLLED_BACK; of an END: STOPPED. reason: in a sentence
    best         the text of the best implementation after the round
    best_s       its seconds; over_start and over_baseline how many times as fast it is as the start and as `baseline`,
                 interleaved (None where that was not timed)
    """

    id: str
    created_at: str
    run: str
    stage: str
    number: int
    operator: str
    implementation: str
    workload: str
    dtype: str
    device: str
    fingerprint: str
    engine: str
    options: tuple[tuple[str, str], ...]
    start_sha256: str
    family: str
    diagnosis: Diagnosis
    strategy: str
    hypothesis: str
    expected: float | None
    tried: tuple[Tried, ...]
    comparison: Comparison | None
    decision: str
    reason: str
    best: str
    best_s: float | None
    baseline: str
    over_start: float | None
    over_baseline: float | None
    tokens: int
    spent_s: float
