"""Verifies one implementation of one operator in one dtype: every case, in a process of its own, against the oracle."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from opforge.backends import Missing, Stood, backend
from opforge.core.errors import EnvironmentLacks, NotNow
from opforge.core.implementation import Config, Implementation
from opforge.core.operator import Case
from opforge.core.verdict import FAILURES, Checked, Crash, Mismatch, Pass, Statement, Timeout, Unsupported, Verdict, Window
from opforge.runner import Worker, WorkerDied, WorkerLate
from opforge.verdicts.cause import from_lengths
from opforge.verdicts.judge import run_once
from opforge.verdicts.oracle import reduction_length
from opforge.verdicts.prepared import Bench, Prepared
from opforge.verdicts.repeats import Repeats
from opforge.verdicts.shrink import shrink
from opforge.verdicts.suite import DEFAULT, EXACT, Effort, elements, reduced
from opforge.verdicts.window import window

OWN_SHARE = 0.5
"""Of the time for extra runs, what the operator's own cases may take; hidden cases have the rest."""


def verify(
    bench: Bench,
    implementation: Implementation,
    dtype: str,
    *,
    cases: Iterable[Case] | None = None,
    config: Config | None = None,
    effort: Effort | None = None,
    progress: Callable[[Case], None] = lambda _: None,
) -> Verdict:
    """The Verdict on one implementation in one dtype.

    cases    what to run; default: the operator's own and hidden ones drawn at run time
    effort   suite.DEFAULT, suite.QUICK, or suite.EXACT (the default when `cases` are given: these and nothing else)

    Stops at the first failure, which is then shrunk. A case that the implementation's own statements refuse is noted in the
    Pass; when it refuses all of them the verdict is Unsupported. Raises NotNow where this machine has no process or no memory to run it in.
    """
    operator = bench.operator
    way = backend(implementation.backend).way(bench.device)
    if isinstance(way, Missing):
        return Unsupported(reason=str(way))
    effort = effort or (DEFAULT if cases is None else EXACT)
    stood = isinstance(way, Stood)
    own = [case for case in (operator.cases if cases is None else cases) if case.dtype in (None, dtype)]
    rest: list[Case] = []
    if not effort.own:
        chosen = list(reduced(operator, own, effort.stood_elements if stood else effort.elements))
        own, rest = chosen, [case for case in own if case not in chosen]
    if not own:
        return Unsupported(reason=f"{operator.name} has no case for {dtype}")
    hidden = bench.hidden(dtype, effort, stood) if effort.hidden else ()
    run = _Run(bench=bench, implementation=implementation, dtype=dtype, config=config, effort=effort, progress=progress)
    failure = run.cases(own, hidden)
    if failure is None and not run.checked and rest:
        # none of the selection is in its domain: it may still be for those that were left out
        failure = run.cases(rest, ())
    if isinstance(failure, FAILURES):
        return run.explained(failure)
    if failure is not None:
        return failure
    if not run.checked:
        return Unsupported(reason=run.refused[0][1] if run.refused else "no case of the operator is defined here")
    statements = (*run.repeats.statements(), *run.hidden_statement(hidden)) if effort.hidden else ()
    return Pass(checked=tuple(run.checked), not_taken=tuple(run.refused), isolation=bench.host.isolation, statements=statements, worst=run.worst)


@dataclass(kw_only=True)
class _Run:
    """One verification under way."""

    bench: Bench
    implementation: Implementation
    dtype: str
    config: Config | None
    effort: Effort
    progress: Callable[[Case], None]
    checked: list[Checked] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    hidden_done: int = 0
    undefined: int = 0
    worst: Window | None = None
    worst_ratio: float = -1.0

    def __post_init__(self) -> None:
        self.repeats = Repeats(bench=self.bench, implementation=self.implementation, dtype=self.dtype, config=self.config, effort=self.effort)

    def cases(self, own: Iterable[Case], hidden: Iterable[Case]) -> Verdict | None:
        """Run them all in one worker: None when nothing is wrong, else the first failure, or Unsupported."""
        worker: Worker | None = None
        current: Case | None = None
        try:
            worker = self.bench.host.worker(backend(self.implementation.backend).environment(self.bench.device))
            for case in own:
                current = case
                failure = self._case(worker, self.bench.prepare(case, self.dtype), OWN_SHARE)
                if failure is not None:
                    return failure
            for case in hidden:
                if not self.repeats.more() and self.hidden_done >= self.effort.least_hidden:
                    break
                current = case
                begun, extra = time.perf_counter(), self.repeats.spent_s
                prepared = self.bench.prepare_if_defined(case, self.dtype)
                self.undefined += prepared is None
                failure = self._case(worker, prepared, 1.0) if prepared is not None else None
                # the extra runs have counted their own part
                self.repeats.spent_s += time.perf_counter() - begun - (self.repeats.spent_s - extra)
                if failure is not None:
                    return failure
                self.hidden_done += 1
        except NotNow:
            # the machine's trouble of this moment says nothing of the kernel, and is no verdict
            raise
        except EnvironmentLacks as error:
            return Unsupported(reason=str(error))
        except WorkerDied as error:
            return Crash(case=self._seeded(current), dtype=self.dtype, status=error.status, stderr=error.stderr, isolation=self.bench.host.isolation)
        except WorkerLate as error:
            return Timeout(case=self._seeded(current), dtype=self.dtype, limit_s=error.limit_s, isolation=self.bench.host.isolation)
        finally:
            if worker is not None:
                worker.close()
        return None

    def _case(self, worker: Worker, prepared: Prepared, share: float) -> Verdict | None:
        self.progress(prepared.case)
        found = run_once(self.bench, worker, self.implementation, prepared, self.config)
        if isinstance(found, str):
            self.refused.append((prepared.case.name, found))
            return None
        launch, outcome = found
        if not isinstance(outcome, Checked):
            return outcome
        self.checked.append(outcome)
        self._remember_worst(prepared, outcome)
        failure = self.repeats.after(worker, prepared, launch, share)
        if failure is None:
            worker.request({"do": "release", "launch": launch})
        return failure

    def _remember_worst(self, prepared: Prepared, outcome: Checked) -> None:
        for metrics, expectation in zip(outcome.metrics, prepared.truth.expectations, strict=True):
            if metrics.worst_ratio > self.worst_ratio and metrics.elements:
                import torch

                self.worst_ratio = metrics.worst_ratio
                actual = prepared.arena.tensors("output")[expectation.output].double().to(prepared.place)
                self.worst = window(expectation.output, metrics.worst_index, expectation.expected, actual, torch.zeros_like(actual, dtype=torch.bool))

    def _seeded(self, case: Case | None) -> Case | None:
        """The case with the seed that its values came from, so that the record replays."""
        prepared = self.bench.prepared.get((case.name, self.dtype)) if case is not None else None
        return prepared.case if prepared is not None else case

    def explained(self, failure: Verdict) -> Verdict:
        """The failure on the smallest case that still shows it, with what the other cases say of its cause."""
        try:
            shrunk = shrink(self.bench.operator, self.dtype, failure, self._attempt, self.effort.shrink_s)
        except (NotNow, OSError, MemoryError):
            # found is found, on whatever case: what the machine lacks for smaller ones is no reason to lose it
            return failure
        verdict = shrunk.verdict
        if isinstance(verdict, Mismatch) and isinstance(failure, Mismatch):
            right = [reduction_length(self.bench.operator, checked.case, self.dtype) for checked in self.checked]
            right += [reduction_length(self.bench.operator, case, self.dtype) for case, failed in shrunk.attempts if not failed]
            wrong = [reduction_length(self.bench.operator, failure.case, self.dtype)]
            wrong += [reduction_length(self.bench.operator, case, self.dtype) for case, failed in shrunk.attempts if failed]
            words = from_lengths(failure, right, wrong)
            if words:
                verdict = dataclasses.replace(verdict, cause=words)
            elif verdict is not failure and "without a pattern" not in failure.cause:
                # a case of a few elements has little pattern to show; the larger one had more
                verdict = dataclasses.replace(verdict, cause=failure.cause)
        return verdict

    def _attempt(self, case: Case) -> Verdict | None:
        """The failure of one case in a fresh worker; None when it is right, refused or not defined."""
        alone = Bench(
            registry=self.bench.registry,
            operator=self.bench.operator,
            host=self.bench.host,
            device=self.bench.device,
            bind_limit_s=self.bench.bind_limit_s,
            run_limit_s=self.bench.run_limit_s,
        )
        try:
            if alone.prepare_if_defined(case, self.dtype) is None:
                return None
            run = _Run(bench=alone, implementation=self.implementation, dtype=self.dtype, config=self.config, effort=EXACT, progress=self.progress)
            failure = run.cases([case], ())
            return failure if isinstance(failure, FAILURES) else None
        finally:
            alone.close()

    def hidden_statement(self, hidden: tuple[Case, ...]) -> tuple[Statement, ...]:
        """How many of the hidden cases were run, and how many the definition leaves open."""
        done = self.hidden_done - self.undefined
        sizes = [elements(self.bench.operator, case) for case in hidden[: self.hidden_done]]
        words = f"{done} of {len(hidden)} drawn at run time, up to {max(sizes, default=0)} elements"
        if self.undefined:
            words += f"; the reference is not defined for {self.undefined} of them"
        if self.hidden_done < len(hidden):
            words += "; the time for more was used up"
        return (Statement(name="hidden_cases", holds=done > 0 or None, detail=words),)
