"""What one run cannot show: the same inputs again, other inputs at the same addresses, one row of a batch alone."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field
from random import SystemRandom
from typing import Any

from opforge.backends import backend
from opforge.core.implementation import Config, Implementation
from opforge.core.shapes import tokens
from opforge.core.verdict import Broken, Mismatch, Statement
from opforge.runner import Worker, allocate
from opforge.verdicts.judge import judge, run_again, run_once, start
from opforge.verdicts.prepared import Bench, Prepared
from opforge.verdicts.suite import Effort, elements, leading_axis

ROW_CHECKS = 3


@dataclass(kw_only=True)
class Repeats:
    """The extra runs of one verification, within its effort, and what they showed.

    `more()` says whether time is left; `share` is the part of the time that the operator's own cases may take.
    """

    bench: Bench
    implementation: Implementation
    dtype: str
    config: Config | None
    effort: Effort
    spent_s: float = 0.0
    runs: int = 0
    contents: int = 0
    rows: int = 0
    differing: str = ""
    varying: str = ""
    hammered: bool = False
    _random: SystemRandom = field(default_factory=SystemRandom)

    def more(self, share: float = 1.0) -> bool:
        """Whether more runs may begin."""
        return self.spent_s < share * self.effort.seconds

    def after(self, worker: Worker, prepared: Prepared, launch: int, share: float) -> Mismatch | Broken | None:
        """The extra runs after a case that was right once. Its launch stays bound. What fails is the verdict.

        Raises WorkerDied and WorkerLate.
        """
        if not self.more(share) or not elements(self.bench.operator, prepared.case):
            return None
        begun = time.perf_counter()
        outputs = _output_bytes(prepared)
        try:
            failure = self._same(worker, prepared, launch, outputs, 1)
            if failure is None and not self.hammered and outputs.numel() >= 64:
                self.hammered = True
                left = 0.3 * self.effort.seconds
                failure = self._same(worker, prepared, launch, outputs, self.effort.repeats, until=time.perf_counter() + left)
            failure = failure or self._other_content(worker, prepared, launch)
            if failure is None and self.rows < ROW_CHECKS:
                failure = self._row_alone(worker, prepared, outputs)
            return failure
        finally:
            self.spent_s += time.perf_counter() - begun

    def _same(self, worker: Worker, prepared: Prepared, launch: int, outputs: Any, count: int, until: float = float("inf")) -> Mismatch | Broken | None:
        import torch

        for _ in range(count):
            broken = run_again(self.bench, worker, launch, prepared)
            if broken is not None:
                return dataclasses.replace(broken, reason=f"right once, and the second time on the same inputs: {broken.reason}")
            self.runs += 1
            if not torch.equal(_output_bytes(prepared), outputs):
                self.differing = self.differing or prepared.case.name
                found = judge(prepared, self.bench.operator, self.bench.host.isolation)
                if isinstance(found, Mismatch):
                    return dataclasses.replace(
                        found, cause=f"right in one run and wrong in another on the same inputs: a race, or memory that is read before it is written; {found.cause}"
                    )
                if isinstance(found, Broken):
                    return found
            if time.perf_counter() > until:
                break
        return None

    def _other_content(self, worker: Worker, prepared: Prepared, launch: int) -> Mismatch | Broken | None:
        other = self.bench.successor(prepared)
        broken = run_again(self.bench, worker, launch, other)
        if broken is not None:
            return broken
        self.contents += 1
        found = judge(other, self.bench.operator, self.bench.host.isolation)
        if isinstance(found, Mismatch):
            alone = self._in_a_fresh_worker(other)
            if isinstance(alone, (Mismatch, Broken)):
                # wrong for these values whatever came before them
                return alone
            cause = f"right for the first content of these addresses and wrong for the second: an answer that was kept, or memory that is not reset; {found.cause}"
            return dataclasses.replace(found, cause=cause, after=prepared.case)
        return found if isinstance(found, Broken) else None

    def _in_a_fresh_worker(self, prepared: Prepared) -> Mismatch | Broken | None:
        """What a worker that has seen nothing else makes of a case; None when it is right there."""
        worker = self.bench.host.worker(backend(self.implementation.backend).environment(self.bench.device))
        try:
            found = run_once(self.bench, worker, self.implementation, prepared, self.config)
        finally:
            worker.close()
        return found[1] if not isinstance(found, str) and isinstance(found[1], (Mismatch, Broken)) else None

    def _row_alone(self, worker: Worker, prepared: Prepared, outputs: Any) -> Broken | None:
        """Run one row by itself and compare it, bit by bit, with that row of the batch."""
        import torch

        operator, case = self.bench.operator, prepared.case
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
                source = whole[spec.name].reshape(rows, *whole[spec.name].shape[len(sizes) :])[row : row + 1] if led else whole[spec.name]
                part[spec.name].copy_(source.reshape(part[spec.name].shape))
            started = start(self.bench, worker, self.implementation, alone, self.dtype, arena, self.config)
            if isinstance(started, Broken):
                return started
            if not isinstance(started, int):
                return None
            self.rows += 1
            prepared.arena.bytes()[_output_mask(prepared)] = outputs
            for spec in operator.outputs:
                batch = prepared.arena.tensors("output")[spec.name]
                here = batch.reshape(rows, *batch.shape[len(sizes) :])[row].contiguous()
                there = arena.tensors("output")[spec.name].contiguous()
                if not torch.equal(here.reshape(-1).view(torch.uint8), there.reshape(-1).view(torch.uint8)):
                    self.varying = self.varying or f"row {row} of {case.name}"
            worker.request({"do": "release", "launch": started})
        finally:
            arena.close()
        return None

    def _declared(self) -> str:
        return "; its file says so" if not self.implementation.deterministic else "; its file does not say so: add DETERMINISTIC = False"

    def statements(self) -> tuple[Statement, ...]:
        """What the extra runs say of the implementation."""
        lead = leading_axis(self.bench.operator)
        deterministic = (
            Statement(name="deterministic", holds=None, detail="not asked: no case was run twice")
            if not self.runs
            else Statement(name="deterministic", holds=False, detail=f"{self.differing}: the same inputs gave other bits, within the bound{self._declared()}")
            if self.differing
            else Statement(name="deterministic", holds=True, detail=f"{self.runs} further runs on the same inputs, the same bits each time")
        )
        invariant = (
            Statement(name="batch_invariant", holds=None, detail="not asked: no leading axis of rows" if lead is None else "not asked: no case with several rows was run")
            if not self.rows
            else Statement(name="batch_invariant", holds=False, detail=f"{self.varying} alone gives other bits than in its batch")
            if self.varying
            else Statement(name="batch_invariant", holds=True, detail=f"{self.rows} rows alone gave the same bits as in their batches")
        )
        fresh = Statement(name="no_answer_kept", holds=True if self.contents else None, detail=f"{self.contents} times other content at the same addresses, answered rightly")
        return deterministic, invariant, fresh


def _output_mask(prepared: Prepared) -> Any:
    import torch

    slots = [slot for slot in prepared.arena.slots if slot.role == "output"]
    return torch.cat([torch.arange(slot.offset, slot.offset + slot.span_bytes) for slot in slots])


def _output_bytes(prepared: Prepared) -> Any:
    """A copy of all bytes of the outputs, in one piece."""
    import torch

    whole = prepared.arena.bytes()
    return torch.cat([whole[slot.offset : slot.offset + slot.span_bytes] for slot in prepared.arena.slots if slot.role == "output"])
