"""What one run cannot show: the same inputs again, other inputs at the same addresses, one row of a batch alone."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field
from random import SystemRandom
from typing import Any

from opforge.backends import backend
from opforge.core.definition.call_form import formed
from opforge.core.definition.implementation import Config, Implementation
from opforge.core.definition.shapes import tokens
from opforge.core.evidence.verdict import Broken, Checked, Mismatch, Statement
from opforge.runner import Worker, WorkerDied, WorkerLate, allocate
from opforge.runner.wire.messages import Release
from opforge.verify.cases.case_cache import CaseCache, PreparedCase
from opforge.verify.cases.hidden import Effort, elements, leading_axis
from opforge.verify.judging.run_case import CaseRun, Ran, Started, judge, run_again, run_once, start

ROW_CHECKS = 3
BOTH_PATTERNS = 2
RACE = "right in one run and wrong in another on the same inputs: a race, or memory that is read before it is written"
PAIRS = 12
"""Of runs with one pattern and the other, before it is said that bits follow the pattern: sums of three terms in any
order have three results, and four runs agreed by chance in one verification of 81."""
LEAST_PATTERNS = 2
"""Cases that are run with the other pattern around their tensors whatever time is left."""

TWO_PATTERNS = (
    "right with one pattern in the memory that is not its own and wrong with another: it reads outside of "
    "a tensor, or leaves an element unwritten"
)


@dataclass(kw_only=True)
class Repeats:
    """The extra runs of one verification, within its effort, and what they showed.

    `more()` says whether time is left; `share` is the part of the time that the operator's own cases may take.
    """

    bench: CaseCache
    implementation: Implementation
    dtype: str
    config: Config | None
    effort: Effort
    spent_s: float = 0.0
    runs: int = 0
    patterns: int = 0
    contents: int = 0
    rows: int = 0
    differing: str = ""
    varying: str = ""
    hammered: bool = False
    _random: SystemRandom = field(default_factory=SystemRandom)

    def more(self, share: float = 1.0) -> bool:
        """Whether more runs may begin."""
        return self.spent_s < share * self.effort.seconds

    def after(self, worker: Worker, prepared: PreparedCase, launch: int, share: float) -> Mismatch | Broken | None:
        """The extra runs after a case that was right once. Its launch stays bound. What fails is the verdict.

        Raises WorkerDied and WorkerLate.
        """
        if prepared.case.pattern == BOTH_PATTERNS:
            return self._other_pattern(worker, prepared, launch, _output_bytes(prepared))
        if not elements(self.bench.operator, prepared.case) or not self.effort.repeats:
            return None
        if not self.more(share) and self.patterns >= LEAST_PATTERNS and prepared.case.distribution != "special":
            return None
        begun = time.perf_counter()
        outputs = _output_bytes(prepared)
        try:
            failure = self._other_pattern(worker, prepared, launch, outputs)
            if not self.more(share):
                return failure
            if failure is None and not self.hammered and outputs.numel() >= 64:
                self.hammered = True
                left = 0.3 * self.effort.seconds
                failure = self._same(
                    worker, prepared, launch, outputs, self.effort.repeats, until=time.perf_counter() + left
                )
            failure = failure or self._other_content(worker, prepared, launch)
            if failure is None and self.rows < ROW_CHECKS:
                failure = self._row_alone(worker, prepared, outputs)
            return failure
        finally:
            self.spent_s += time.perf_counter() - begun

    def once_more(self, worker: Worker, prepared: PreparedCase, launch: int, failure: Mismatch) -> Mismatch:
        """A run that was wrong, made again: where the second is right, that is its cause."""
        if not self.effort.repeats:
            return failure
        try:
            broken = run_again(self.bench, worker, launch, prepared)
        except (WorkerDied, WorkerLate):
            return failure
        if broken is not None or not isinstance(
            judge(prepared, self.bench.operator, self.bench.host.isolation), Checked
        ):
            return failure
        # where the wrong ones lie is chance: it tells of no mask
        return dataclasses.replace(failure, cause=RACE)

    def _same(
        self, worker: Worker, prepared: PreparedCase, launch: int, outputs: Any, count: int, until: float = float("inf")
    ) -> Mismatch | Broken | None:
        import torch

        for _ in range(count):
            broken = run_again(self.bench, worker, launch, prepared)
            if broken is not None:
                return dataclasses.replace(
                    broken, reason=f"right once, and the second time on the same inputs: {broken.reason}"
                )
            self.runs += 1
            if not torch.equal(_output_bytes(prepared), outputs):
                self.differing = self.differing or prepared.case.name
                outcome = judge(prepared, self.bench.operator, self.bench.host.isolation, measured=False)
                if isinstance(outcome, Mismatch):
                    return dataclasses.replace(outcome, cause=RACE)
                if isinstance(outcome, Broken):
                    return outcome
            if time.perf_counter() > until:
                break
        return None

    def _other_pattern(
        self, worker: Worker, prepared: PreparedCase, launch: int, outputs: Any
    ) -> Mismatch | Broken | None:
        """The same inputs once more, with the other pattern around them and in the outputs: the answer must be the
        same, bit by bit.
        """
        import torch

        other = self.bench.repatterned(prepared)
        if other is None:
            return self._same(worker, prepared, launch, outputs, 1)
        broken = run_again(self.bench, worker, launch, other)
        if broken is not None:
            return dataclasses.replace(
                broken, reason=f"right once, and the second time on the same inputs: {broken.reason}"
            )
        self.runs += 1
        self.patterns += 1
        outcome = judge(other, self.bench.operator, self.bench.host.isolation)
        if isinstance(outcome, Mismatch):
            raced = self.once_more(worker, other, launch, outcome)
            return (
                raced
                if raced is not outcome
                else dataclasses.replace(outcome, cause=f"{TWO_PATTERNS}; {outcome.cause}")
            )
        if isinstance(outcome, Broken):
            return outcome
        second = _output_bytes(other)
        if torch.equal(second, outputs):
            return None
        # other bits, each of them within the bound: does it follow the pattern, or differ from run to run?
        follows = True
        for side in (prepared, other) * PAIRS:
            broken = run_again(self.bench, worker, launch, side)
            if broken is not None:
                return broken
            follows = torch.equal(_output_bytes(side), outputs if side is prepared else second)
            if not follows:
                break
        if follows:
            reason = (
                "its result follows the memory outside of its tensors: the same inputs give other bits, each "
                "time, when other values stand there"
            )
            case = dataclasses.replace(prepared.case, pattern=BOTH_PATTERNS)
            return Broken(case=case, dtype=self.dtype, reason=reason, isolation=self.bench.host.isolation)
        self.differing = self.differing or prepared.case.name
        return None

    def _other_content(self, worker: Worker, prepared: PreparedCase, launch: int) -> Mismatch | Broken | None:
        other = self.bench.successor(prepared)
        broken = run_again(self.bench, worker, launch, other)
        if broken is not None:
            return broken
        self.contents += 1
        outcome = judge(other, self.bench.operator, self.bench.host.isolation, measured=False)
        if isinstance(outcome, Mismatch):
            raced = self.once_more(worker, other, launch, outcome)
            if raced is not outcome:
                return raced
            alone = self._in_a_fresh_worker(other)
            if isinstance(alone, (Mismatch, Broken)):
                # wrong for these values whatever came before them
                return alone
            cause = (
                "right for the first content of these addresses and wrong for the second: an answer that was "
                "kept, or memory that is not reset"
            )
            return dataclasses.replace(outcome, cause=cause, after=prepared.case)
        return outcome if isinstance(outcome, Broken) else None

    def _in_a_fresh_worker(self, prepared: PreparedCase) -> Mismatch | Broken | None:
        """What a worker that has seen nothing else makes of a case; None when it is right there."""
        worker = self.bench.host.worker(backend(self.implementation.backend).environment(self.bench.device))
        try:
            ran = run_once(self.bench, worker, self.implementation, prepared, self.config)
        finally:
            worker.close()
        return ran.outcome if isinstance(ran, Ran) and isinstance(ran.outcome, Mismatch | Broken) else None

    def _row_alone(self, worker: Worker, prepared: PreparedCase, outputs: Any) -> Broken | None:
        """Run one row by itself and compare it, bit by bit, with that row of the batch."""
        import torch

        case = prepared.case
        operator = formed(self.bench.operator, {**case.axes, **case.scalars})
        lead = leading_axis(operator)
        if lead is None or case.layout != "contiguous":
            return None
        sizes = case.axes[lead]
        assert isinstance(sizes, tuple)
        rows = 1
        for extent in sizes:
            rows *= extent
        if rows < 2:
            return None
        row = self._random.randrange(rows)
        alone = dataclasses.replace(case, name=f"{case.name}_row_{row}", axes={**case.axes, lead: (1,)})
        arena = allocate(operator, alone, self.dtype)
        try:
            prepared.reset()
            whole, part = prepared.arena.tensors("input"), arena.tensors("input")
            for spec in operator.inputs:
                led = tokens(spec.shape)[:1] == (f"*{lead}",)
                source = (
                    whole[spec.name].reshape(rows, *whole[spec.name].shape[len(sizes) :])[row : row + 1]
                    if led
                    else whole[spec.name]
                )
                part[spec.name].copy_(source.reshape(part[spec.name].shape))
            started = start(
                CaseRun(
                    bench=self.bench,
                    worker=worker,
                    implementation=self.implementation,
                    case=alone,
                    dtype=self.dtype,
                    arena=arena,
                    config=self.config,
                )
            )
            if isinstance(started, Broken):
                return started
            if not isinstance(started, Started):
                return None
            self.rows += 1
            prepared.arena.bytes()[_output_mask(prepared)] = outputs
            for spec in operator.outputs:
                batch = prepared.arena.tensors("output")[spec.name]
                here = batch.reshape(rows, *batch.shape[len(sizes) :])[row]
                if not torch.equal(_copied_bytes(here), _copied_bytes(arena.tensors("output")[spec.name])):
                    self.varying = self.varying or f"row {row} of {case.name}"
            worker.request(Release(launch=started.launch))
        finally:
            arena.close()
        return None

    def _declared(self) -> str:
        return (
            "; its file says so"
            if not self.implementation.deterministic
            else "; its file does not say so: add DETERMINISTIC = False"
        )

    def statements(self) -> tuple[Statement, ...]:
        """What the extra runs say of the implementation."""
        lead = leading_axis(self.bench.operator)
        deterministic = (
            Statement(name="deterministic", holds=None, detail="not asked: no case was run twice")
            if not self.runs
            else Statement(
                name="deterministic",
                holds=False,
                detail=f"{self.differing}: the same inputs gave other bits, within the bound{self._declared()}",
            )
            if self.differing
            else Statement(
                name="deterministic",
                holds=True,
                detail=f"{self.runs} further runs on the same inputs, the same bits each time",
            )
        )
        invariant = (
            Statement(
                name="batch_invariant",
                holds=None,
                detail="not asked: no leading axis of rows"
                if lead is None
                else "not asked: no case with several rows was run",
            )
            if not self.rows
            else Statement(
                name="batch_invariant", holds=False, detail=f"{self.varying} alone gives other bits than in its batch"
            )
            if self.varying
            else Statement(
                name="batch_invariant",
                holds=True,
                detail=f"{self.rows} rows alone gave the same bits as in their batches",
            )
        )
        fresh = Statement(
            name="no_answer_kept",
            holds=True if self.contents else None,
            detail=f"{self.contents} times other content at the same addresses, answered rightly",
        )
        return deterministic, invariant, fresh


def _output_mask(prepared: PreparedCase) -> Any:
    import torch

    slots = [slot for slot in prepared.arena.slots if slot.written]
    return torch.cat([torch.arange(slot.offset, slot.offset + slot.span_bytes) for slot in slots])


def _output_bytes(prepared: PreparedCase) -> Any:
    """A copy of all bytes of the outputs' elements, in one piece."""
    import torch

    written = [prepared.arena.tensor(slot.name) for slot in prepared.arena.slots if slot.written]
    return torch.cat([_copied_bytes(tensor) for tensor in written])


def _copied_bytes(tensor: Any) -> Any:
    """The bytes of a tensor's elements, in order. Of one element that is overwritten where every second one is an
    input's, `contiguous` keeps the step of two, and a step has no bytes.
    """
    import torch

    return tensor.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)
