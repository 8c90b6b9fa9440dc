"""Verifies one implementation of one operator in one dtype: every case, in a process of its own, against the oracle."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import SystemRandom

from opforge.backends import Emulated, Missing, backend
from opforge.core.definition.implementation import Config, Implementation, Rejected
from opforge.core.definition.operator import Case
from opforge.core.definition.shapes import full_shape
from opforge.core.evidence.verdict import (
    FAILURES,
    Checked,
    Crash,
    Mismatch,
    Pass,
    Statement,
    Timeout,
    Unsupported,
    Verdict,
    Window,
)
from opforge.core.language import spans
from opforge.core.language.errors import NotNow
from opforge.runner import Worker, WorkerDied
from opforge.runner.wire.messages import Release
from opforge.runner.worker.launch import LIBRARY
from opforge.verify.cases.case_cache import CaseCache, PreparedCase, Undefined, key_of
from opforge.verify.cases.declared_cases import (
    CROSSED,
    CROSSED_EMULATED,
    again,
    crossed,
    declared,
    fenced,
    long_random,
    longest,
)
from opforge.verify.cases.hidden import DEFAULT, EXACT, Effort, elements, reduced
from opforge.verify.explain.by_threads import race
from opforge.verify.explain.cause import from_lengths, from_widths
from opforge.verify.explain.missing_barrier import missing_barrier
from opforge.verify.explain.not_numbers import UNSHARED
from opforge.verify.explain.shrink import shrink
from opforge.verify.explain.window import window
from opforge.verify.judging.exception_verdicts import NO_ANSWER, verdict_of
from opforge.verify.judging.repeats import RACE, Repeats
from opforge.verify.judging.rounded_factors import rounds_factors
from opforge.verify.judging.run_case import run_once
from opforge.verify.judging.threads import threads_for
from opforge.verify.judging.two_callers import two_callers
from opforge.verify.oracle.expectation import reduction_length

MOST_STRUCK = 3
"""How often in one verification a case is run once more, because a signal from outside ended its worker."""
TELLING = 16
"""Elements of an output from which on the pattern of its own wrong ones is told, and not that of the case it was shrunk
from.
"""

OWN_SHARE = 0.5
"""Of the time for extra runs, what the operator's own cases may take; hidden cases have the rest."""


@spans.spanned(
    lambda bench, implementation, dtype, **_: ("verify", f"{bench.operator.name} {implementation.name} {dtype}", "")
)
def verify(
    bench: CaseCache,
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

    Stops at the first failure, which is then shrunk. A case that the implementation's own statements refuse is noted in
    the Pass; when it refuses all of them the verdict is Unsupported. Raises NotNow where this machine has no process or
    no memory to run it in.
    """
    operator = bench.operator
    mode = backend(implementation.backend).execution_mode(bench.device)
    if isinstance(mode, Missing):
        return Unsupported(reason=str(mode))
    lacks = getattr(backend(implementation.backend), "lacks", None)
    if lacks is not None and (reason := lacks(implementation)) is not None:
        return Unsupported(reason=reason)
    effort = effort or (DEFAULT if cases is None else EXACT)
    emulated = isinstance(mode, Emulated)
    own = [case for case in (operator.cases if cases is None else cases) if case.dtype in (None, dtype)]
    rest: list[Case] = []
    if not effort.own:
        chosen = list(reduced(operator, own, effort.emulated_elements if emulated else effort.elements))
        own, rest = chosen, [case for case in own if case not in chosen]
    if not own:
        return Unsupported(reason=f"{operator.name} has no case for {dtype}")
    hidden = bench.hidden(dtype, effort, emulated) if effort.hidden else ()
    run = _Run(
        bench=bench,
        implementation=implementation,
        dtype=dtype,
        config=config,
        effort=effort,
        progress=progress,
        emulated=emulated,
    )
    # torch.compile spends seconds on each new class of shapes, and its file is asked everything itself
    further = bool(effort.hidden) and implementation.backend != "compile"
    if further and implementation.backend not in LIBRARY:
        own += fenced(operator, own)
    failure = run.cases(own, hidden, further=further)
    if failure is None and not run.checked and rest:
        # none of the selection is in its domain: it may still be for those that were left out
        failure = run.cases(rest, (), further=further)
    if isinstance(failure, FAILURES) and not run.told:
        return run.explained(failure)
    if failure is not None:
        return failure
    if not run.checked:
        return Unsupported(reason=run.refused[0][1] if run.refused else "no case of the operator is defined here")
    statements = (*run.repeats.statements(), *run.hidden_statement(hidden)) if effort.hidden else ()
    if run.struck:
        words = f"a signal ended its worker in {'; '.join(run.struck)}. Right in a new worker"
        statements = (*statements, Statement(name="interrupted", holds=None, detail=words))
    statements += tuple(Statement(name="compiler", holds=None, detail=note) for note in run.notes)
    return Pass(
        checked=tuple(run.checked),
        not_taken=tuple(run.refused),
        isolation=bench.host.isolation,
        statements=statements,
        worst=run.worst,
    )


@dataclass(kw_only=True)
class _Run:
    """One verification under way. `told`: its failure says all, and no smaller case would show it."""

    bench: CaseCache
    implementation: Implementation
    dtype: str
    config: Config | None
    effort: Effort
    progress: Callable[[Case], None]
    checked: list[Checked] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    refused_cases: list[Case] = field(default_factory=list)
    hidden_done: int = 0
    undefined: list[str] = field(default_factory=list)
    worst: Window | None = None
    worst_ratio: float = -1.0
    worker: Worker | None = None
    struck: list[str] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    emulated: bool = False
    told: bool = False

    def __post_init__(self) -> None:
        self.repeats = Repeats(
            bench=self.bench,
            implementation=self.implementation,
            dtype=self.dtype,
            config=self.config,
            effort=self.effort,
        )

    def cases(self, own: Iterable[Case], hidden: Iterable[Case], *, further: bool = False) -> Verdict | None:
        """Run them all in one worker: None when nothing is wrong, else the first failure, or Unsupported.

        further   then those that follow from the implementation's own statements as well (see
                  verify.cases.declared_cases)
        """
        pool, whole = self.bench.workers(), False
        current: Case | None = None
        try:
            self.worker = pool.take(self.implementation)
            for case in own:
                current = case
                failure = self._case(self.bench.prepare(case, self.dtype), OWN_SHARE)
                if failure is not None:
                    return failure
            for case in hidden:
                if not self.repeats.more() and self.hidden_done >= self.effort.least_hidden:
                    break
                current = case
                begun, extra = time.perf_counter(), self.repeats.spent_s
                prepared = self.bench.prepare_if_defined(case, self.dtype)
                failure = None
                if isinstance(prepared, Undefined):
                    self.undefined.append(prepared.reason)
                else:
                    current = prepared.case
                    failure = self._case(prepared, 1.0)
                # the extra runs have counted their own part
                self.repeats.spent_s += time.perf_counter() - begun - (self.repeats.spent_s - extra)
                if failure is not None:
                    return failure
                self.hidden_done += 1
            for case in self._asked() if further else ():
                current = case
                prepared = self.bench.prepare_if_defined(case, self.dtype)
                failure = self._case(prepared, 0.0) if not isinstance(prepared, Undefined) else None
                if failure is not None:
                    return failure
            if further and not self.emulated and self.worker is not None:
                failure = rounds_factors(self.bench, self.worker, self.implementation, self.dtype, self.config)
                failure = failure or two_callers(self.bench, self.worker, self.implementation, self.dtype, self.config)
                if failure is not None:
                    self.told = True
                    return failure
            whole = True
        except NO_ANSWER as error:
            verdict = verdict_of(error, self._seeded(current), self.dtype, self.bench.host.isolation)
            if (
                isinstance(verdict, Crash)
                and current is not None
                and current.layout == "fenced"
                and -verdict.status in (signal.SIGSEGV, signal.SIGBUS)
            ):
                fence = (
                    "\nit reads or writes outside of a tensor: on this memory, which ends where each tensor "
                    "does, that ends the process"
                )
                verdict = dataclasses.replace(verdict, stderr=verdict.stderr + fence)
            return verdict
        finally:
            if self.worker is not None:
                pool.heard(self.implementation, self.dtype, self.config, self.worker)
                pool.leave(self.implementation, self.worker, whole=whole)
                self.worker = None
        return None

    def _asked(self) -> Iterator[Case]:
        """What follows from the implementation's own statements, and from which cases were checked so far."""
        operator, implementation, dtype, draw = self.bench.operator, self.implementation, self.dtype, SystemRandom()
        checked = [item.case for item in self.checked]
        yield from longest(operator, implementation, dtype, draw)
        yield from again(operator, implementation, dtype, self.refused_cases, checked, draw)
        yield from declared(operator, implementation, [item.case for item in self.checked], dtype)
        emulated = isinstance(backend(implementation.backend).execution_mode(self.bench.device), Emulated)
        count = CROSSED_EMULATED if emulated else CROSSED
        yield from crossed(operator, implementation, dtype, [item.case for item in self.checked], draw, count)
        if not emulated:
            yield from long_random(operator, implementation, dtype, [item.case for item in self.checked])

    def _case(self, prepared: PreparedCase, share: float) -> Verdict | None:
        self.progress(prepared.case)
        assert self.worker is not None
        # copies of an arena too: a pool's second thread spins for milliseconds after each, half of all processor time
        with threads_for(prepared.arena.size):
            try:
                return self._ran(self.worker, prepared, share)
            except WorkerDied as error:
                if not error.struck or len(self.struck) == MOST_STRUCK:
                    raise
                # somebody ended it: what the kernel is to blame for shows in a new one as well
                self.struck.append(f"{prepared.case.name}: {error.stderr.splitlines()[-1]}")
            self.worker.close()
            self.worker = self.bench.workers().take(self.implementation)
            return self._ran(self.worker, prepared, share)

    def _ran(self, worker: Worker, prepared: PreparedCase, share: float) -> Verdict | None:
        ran = run_once(self.bench, worker, self.implementation, prepared, self.config)
        if isinstance(ran, Rejected):
            self.refused.append((prepared.case.name, ran.reason))
            self.refused_cases.append(prepared.case)
            return None
        launch, outcome = ran.launch, ran.outcome
        self.notes.update(dict.fromkeys(ran.notes))
        if not isinstance(outcome, Checked):
            return (
                self.repeats.once_more(worker, prepared, launch, outcome)
                if isinstance(outcome, Mismatch) and launch
                else outcome
            )
        self.checked.append(outcome)
        self._remember_worst(prepared, outcome)
        failure = self.repeats.after(worker, prepared, launch, share)
        if failure is None:
            worker.request(Release(launch=launch))
        return failure

    def _remember_worst(self, prepared: PreparedCase, outcome: Checked) -> None:
        for metrics, expectation in zip(outcome.metrics, prepared.truth.expectations, strict=True):
            if metrics.worst_ratio > self.worst_ratio and metrics.elements:
                import torch

                self.worst_ratio = metrics.worst_ratio
                actual = prepared.arena.tensors("output")[expectation.output].double().to(prepared.place)
                self.worst = window(
                    expectation.output,
                    metrics.worst_index,
                    expectation.expected,
                    actual,
                    torch.zeros_like(actual, dtype=torch.bool),
                )

    def _seeded(self, case: Case | None) -> Case | None:
        """The case with the seed that its values came from, so that the record replays."""
        prepared = self.bench.prepared.get(key_of(case, self.dtype)) if case is not None else None
        return prepared.case if prepared is not None else case

    @spans.spanned(lambda self, failure: ("shrink", f"{self.implementation.name} {self.dtype}", ""))
    def explained(self, failure: Verdict) -> Verdict:
        """The failure on the smallest case that still shows it, with what the other cases say of its cause. A kernel
        that hangs is not asked again: each
        smaller case would cost as much."""
        if isinstance(failure, Timeout):
            return failure
        try:
            shrunk = shrink(self.bench.operator, self.dtype, failure, self._attempt, self.effort.shrink_s)
        except (NotNow, OSError, MemoryError):
            # found is found, on whatever case: what the machine lacks for smaller ones is no reason to lose it
            return failure
        verdict = shrunk.verdict
        if isinstance(verdict, Mismatch) and isinstance(failure, Mismatch):
            right = [reduction_length(self.bench.operator, checked.case, self.dtype) for checked in self.checked]
            right += [
                reduction_length(self.bench.operator, case, self.dtype)
                for case, failed in shrunk.attempts
                if not failed
            ]
            wrong = [reduction_length(self.bench.operator, failure.case, self.dtype)]
            wrong += [
                reduction_length(self.bench.operator, case, self.dtype) for case, failed in shrunk.attempts if failed
            ]
            words = from_lengths(failure, right, wrong)
            words = words or self._by_widths(failure, shrunk.attempts)
            if words:
                verdict = dataclasses.replace(verdict, cause=words)
            elif (
                verdict is not failure
                and (verdict.total < TELLING or (verdict.wrong == 1 and failure.wrong > 1))
                and verdict.law is None
                and "without a pattern" not in failure.cause
            ):
                # a case of a few elements has little pattern to show; the larger one had more, and its places are not
                # this one's
                verdict = dataclasses.replace(
                    verdict, cause=f"in {failure.case.name}, which failed first: {failure.cause}"
                )
            return dataclasses.replace(verdict, cause=self._looked_closer(verdict.cause, failure))
        return verdict

    def _looked_closer(self, cause: str, failure: Mismatch) -> str:
        """The cause, where threads or the text of the source say more than the pattern."""
        if UNSHARED in failure.cause:
            text = self.implementation.source.read_text(encoding="utf-8")
            place = missing_barrier(text) if self.implementation.backend == "cuda" else None
            return f"{failure.cause}. In {self.implementation.source.name} {place}" if place else cause
        if failure.cause == RACE:
            return cause
        return race(self.bench, self.implementation, self.dtype, self.config, failure) or cause

    def _by_widths(self, failure: Mismatch, attempts: Sequence[tuple[Case, bool]]) -> str | None:
        def width(case: Case) -> int:
            shapes = (full_shape(spec.shape, case.axes) for spec in self.bench.operator.inputs[:1])
            return next((shape[-1] for shape in shapes if shape), 1)

        if not self.bench.operator.one_form:
            return None
        right = [width(checked.case) for checked in self.checked] + [width(case) for case, bad in attempts if not bad]
        return from_widths(
            failure.cause, right, [width(failure.case), *(width(case) for case, failed in attempts if failed)]
        )

    def _attempt(self, case: Case) -> Verdict | None:
        """The failure of one case in a fresh worker; None when it is right, refused or not defined."""
        alone = CaseCache(
            registry=self.bench.registry,
            operator=self.bench.operator,
            host=self.bench.host,
            device=self.bench.device,
            bind_limit_s=self.bench.bind_limit_s,
            run_limit_s=self.bench.run_limit_s,
        )
        try:
            prepared = alone.prepare_if_defined(case, self.dtype)
            if isinstance(prepared, Undefined):
                return None
            run = _Run(
                bench=alone,
                implementation=self.implementation,
                dtype=self.dtype,
                config=self.config,
                effort=EXACT,
                progress=self.progress,
            )
            failure = run.cases([prepared.case], ())
            return failure if isinstance(failure, FAILURES) else None
        finally:
            alone.close()

    def hidden_statement(self, hidden: tuple[Case, ...]) -> tuple[Statement, ...]:
        """How many of the hidden cases were run, and how many the definition leaves open."""
        done = self.hidden_done - len(self.undefined)
        sizes = [elements(self.bench.operator, case) for case in hidden[: self.hidden_done]]
        words = f"{done} of {len(hidden)} drawn at run time, up to {max(sizes, default=0)} elements"
        if self.undefined:
            words += f"; the reference is not defined for {len(self.undefined)} of them ({self.undefined[0]})"
        if self.hidden_done < len(hidden):
            words += "; the time for more was used up"
        return (Statement(name="hidden_cases", holds=done > 0 or None, detail=words),)
