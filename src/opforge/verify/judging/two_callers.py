"""Two callers at once: two threads call one implementation on contents of their own, and each must get its own answer.

Scratch memory that all calls share, a static array or a buffer kept in a module, is right in every single call.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from opforge.core.definition.implementation import Config, Implementation
from opforge.core.definition.operator import Case
from opforge.core.evidence.verdict import Broken, Checked, Mismatch
from opforge.runner import Worker, fresh_seed
from opforge.runner.wire.messages import Failure, Release, Run
from opforge.verify.cases.case_cache import CaseCache
from opforge.verify.cases.hidden import elements
from opforge.verify.explain.by_threads import CAUSE as RACE_OF_THREADS, may_race, one_thread
from opforge.verify.judging.run_case import Started, judge, run_of, start

BACKENDS = ("cpp", "torch")
"""Whose calls run side by side in one process. Interpreters and the emulator keep one state for all threads; a compiled
function of PyTorch's is PyTorch's to keep apart."""
ROUNDS = 6
"""Each ends with one call of either that overlaps with the other's: of eight C++ kernels with a static array, each was
wrong in the first two (2026-11-29)."""
MOST = 1 << 16
LEAST = 1 << 6
CAUSE = (
    "right when it is called alone and wrong while another thread calls it on other inputs: memory that calls share, a "
    "static array or a buffer that is kept; make it local to the call, or thread_local"
)


def two_callers(
    bench: CaseCache, worker: Worker, implementation: Implementation, dtype: str, config: Config | None
) -> Mismatch | Broken | None:
    """The failure, if any, of an implementation that two threads call at once, on its operator's largest plain case."""
    if implementation.backend not in BACKENDS or bench.device != "cpu" or bench.operator.overwritten:
        return None
    for case in _plain(bench, dtype):
        found = _on(bench, worker, implementation, dtype, config, case)
        if isinstance(found, Mismatch) and may_race(bench, implementation):
            # its own threads may disturb each other, where those of the other call only make it likelier
            with one_thread(bench, implementation) as alone:
                again = _on(bench, alone, implementation, dtype, config, case)
            return found if again is not None else dataclasses.replace(found, cause=RACE_OF_THREADS)
        if found is not False:
            return found
    return None


def _on(
    bench: CaseCache, worker: Worker, implementation: Implementation, dtype: str, config: Config | None, case: Case
) -> Mismatch | Broken | Literal[False] | None:
    """The failure on a case; False where it does not take the case."""
    isolation = bench.host.isolation
    first = bench.prepare(case, dtype)
    second = bench.prepare(dataclasses.replace(case, name=f"{case.name}_beside", seed=fresh_seed()), dtype)
    launches = []
    try:
        for prepared in (first, second):
            prepared.reset()
            bound = start(run_of(bench, worker, implementation, prepared, config))
            if not isinstance(bound, Started):
                return False
            launches.append(bound.launch)
            if not isinstance(judge(prepared, bench.operator, isolation, measured=False), Checked):
                # wrong alone: that is for others to say
                return None
        for _ in range(ROUNDS):
            for prepared in (first, second):
                prepared.reset()
            answer = worker.request(Run(launch=launches[0], beside=launches[1]), (), bench.run_limit_s)
            if isinstance(answer, Failure):
                reason = f"raised while two threads called it: {answer.reason}"
                return Broken(case=first.case, dtype=dtype, reason=reason, isolation=isolation)
            for prepared in (first, second):
                outcome = judge(prepared, bench.operator, isolation, measured=False)
                if isinstance(outcome, Mismatch):
                    return dataclasses.replace(outcome, cause=CAUSE)
                if not isinstance(outcome, Checked):
                    return outcome
        return None
    finally:
        for launch in launches:
            worker.request(Release(launch=launch))
        bench.forget(second.case)


def _plain(bench: CaseCache, dtype: str) -> list[Case]:
    """Cases of ordinary values as they lie in memory, the largest that is still small first."""
    found = [
        (elements(bench.operator, case), case)
        for case in bench.operator.cases
        if case.distribution == "normal" and case.layout == "contiguous" and case.dtype in (None, dtype)
    ]
    return [case for count, case in sorted(found, key=lambda one: -one[0]) if LEAST <= count <= MOST][:2]
