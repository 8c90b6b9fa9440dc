"""A recorded verification once more, on exactly the values it was made of."""

from __future__ import annotations

import dataclasses

from opforge.core.definition.implementation import Implementation, Rejected
from opforge.core.definition.operator import Case
from opforge.core.evidence.record import Record
from opforge.core.evidence.verdict import Broken, Checked, Crash, LibraryFallback, Mismatch, Pass, Timeout, Verdict
from opforge.runner import WorkerDied, WorkerLate
from opforge.verify.cases.case_cache import CaseCache
from opforge.verify.judging.exception_verdicts import verdict_of
from opforge.verify.judging.run_case import judge, run_again, run_once
from opforge.verify.verification import verify


def replayed_cases(verdict: Verdict) -> tuple[Case, ...]:
    """The cases of a verdict, each with its seed: the failing one first, then the larger one that it was shrunk from;
    of a Pass, all.
    """
    match verdict:
        case Pass():
            return tuple(checked.case for checked in verdict.checked)
        case Mismatch() | Broken(case=Case()) | Crash(case=Case()):
            assert verdict.case is not None
            return (verdict.case, *((verdict.shrunk_from,) if verdict.shrunk_from is not None else ()))
        case Timeout(case=Case() as case) | LibraryFallback(case=Case() as case):
            return (case,)
    return ()


def replay(bench: CaseCache, implementation: Implementation, record: Record) -> Verdict:
    """The verdict on the recorded cases, with the recorded seeds and config. A failure that needed another case before
    it, on
    the same memory, gets that one first."""
    verdict = record.verdict
    if isinstance(verdict, Mismatch) and verdict.after is not None:
        return _in_succession(bench, implementation, record, verdict.after, verdict)
    cases = [dataclasses.replace(case, dtype=None) for case in replayed_cases(verdict)]
    return verify(bench, implementation, record.dtype, cases=_named_apart(cases), config=record.config)


def _named_apart(cases: list[Case]) -> list[Case]:
    """Cases of one name (a workload verified on top) would share their values."""
    seen: set[str] = set()
    renamed = []
    for number, case in enumerate(cases):
        name = case.name if case.name not in seen else f"{case.name}_{number}"
        seen.add(name)
        renamed.append(dataclasses.replace(case, name=name))
    return renamed


def _in_succession(
    bench: CaseCache, implementation: Implementation, record: Record, first: Case, verdict: Mismatch
) -> Verdict:
    from opforge.backends import backend

    worker = bench.host.worker(backend(implementation.backend).environment(bench.device))
    try:
        prepared = bench.prepare(dataclasses.replace(first, dtype=None), record.dtype)
        ran = run_once(bench, worker, implementation, prepared, record.config)
        if isinstance(ran, Rejected) or not isinstance(ran.outcome, Checked):
            return verify(bench, implementation, record.dtype, cases=[prepared.case], config=record.config)
        second = bench.refill(prepared, verdict.case)
        broken = run_again(bench, worker, ran.launch, second)
        outcome = broken or judge(second, bench.operator, bench.host.isolation)
        if isinstance(outcome, Mismatch):
            return dataclasses.replace(outcome, after=prepared.case, cause=verdict.cause)
        if isinstance(outcome, Broken):
            return outcome
        return Pass(checked=(ran.outcome, outcome), not_taken=(), isolation=bench.host.isolation)
    except (WorkerDied, WorkerLate) as error:
        return verdict_of(error, verdict.case, record.dtype, bench.host.isolation)
    finally:
        worker.close()


def same_finding(recorded: Verdict, now: Verdict) -> bool:
    """Whether a replay found what the record says: the same verdict, and of a Mismatch the same element with the same
    values.
    """
    if type(recorded) is not type(now):
        return False
    if isinstance(recorded, Mismatch) and isinstance(now, Mismatch):
        return (recorded.output, recorded.index, repr(recorded.actual), recorded.wrong) == (
            now.output,
            now.index,
            repr(now.actual),
            now.wrong,
        )
    return True
