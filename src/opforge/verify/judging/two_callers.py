"""Two callers at once: two threads call one implementation on contents of their own, and each must get its own answer.

Scratch memory that all calls share, a static array or a buffer kept in a module, is right in every single call.
"""

from __future__ import annotations

import dataclasses

from opforge.core.definition.implementation import Config, Implementation
from opforge.core.definition.operator import Case
from opforge.core.evidence.verdict import Broken, Checked, Mismatch
from opforge.runner import Worker, fresh_seed
from opforge.runner.wire.messages import Failure, Release, Run
from opforge.verify.cases.case_cache import CaseCache
from opforge.verify.cases.hidden import elements
from opforge.verify.judging.run_case import Started as Bound, judge, run_of, start

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
    operator = bench.operator
    if implementation.backend not in BACKENDS or bench.device != "cpu" or operator.overwritten:
        return None
    for case in _plain(bench, dtype):
        first = bench.prepare(case, dtype)
        beside = dataclasses.replace(case, name=f"{case.name}_beside", seed=fresh_seed())
        second = bench.prepare(beside, dtype)
        launches = []
        try:
            for prepared in (first, second):
                prepared.reset()
                bound = start(run_of(bench, worker, implementation, prepared, config))
                if not isinstance(bound, Bound):
                    break
                launches.append(bound.launch)
                if not isinstance(judge(prepared, operator, bench.host.isolation, measured=False), Checked):
                    # wrong alone: that is for others to say
                    return None
            if len(launches) < 2:
                continue
            for _ in range(ROUNDS):
                for prepared in (first, second):
                    prepared.reset()
                answer = worker.request(Run(launch=launches[0], beside=launches[1]), (), bench.run_limit_s)
                if isinstance(answer, Failure):
                    reason = f"raised while two threads called it: {answer.reason}"
                    return Broken(case=first.case, dtype=dtype, reason=reason, isolation=bench.host.isolation)
                for prepared in (first, second):
                    outcome = judge(prepared, operator, bench.host.isolation, measured=False)
                    if not isinstance(outcome, Checked):
                        return dataclasses.replace(outcome, cause=CAUSE) if isinstance(outcome, Mismatch) else outcome
            return None
        finally:
            for launch in launches:
                worker.request(Release(launch=launch))
            bench.forget(second.case)
    return None


def _plain(bench: CaseCache, dtype: str) -> list[Case]:
    """Cases of ordinary values as they lie in memory, the largest that is still small first."""
    found = [
        (elements(bench.operator, case), case)
        for case in bench.operator.cases
        if case.distribution == "normal" and case.layout == "contiguous" and case.dtype in (None, dtype)
    ]
    return [case for count, case in sorted(found, key=lambda one: -one[0]) if LEAST <= count <= MOST][:2]
