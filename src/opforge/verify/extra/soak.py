"""Ten thousand calls of a kernel: whether its answers drift, and whether its process takes ever more memory."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from opforge.backends import backend
from opforge.core.definition.implementation import Config, Implementation
from opforge.core.definition.operator import Case
from opforge.core.evidence.verdict import Broken, Checked, Pass, Statement, Verdict
from opforge.core.language import units
from opforge.runner import Worker
from opforge.runner.parent.client import ForkedWorker
from opforge.runner.wire.messages import Failure, Run
from opforge.verify.cases.case_cache import CaseCache, PreparedCase
from opforge.verify.judging.exception_verdicts import NO_ANSWER, verdict_of
from opforge.verify.judging.run_case import Ran, judge, run_once

STATEMENT = "soak"
CALLS = 10_000
ROUNDS = 10
"""After each the answer is judged, on outputs that were poisoned, and memory is looked at."""
MOST_ELEMENTS = 1 << 16
LEAK = 512
"""Bytes a call by which memory grows in both halves: what is cached fills once, and what is leaked goes on. 10,000
calls of softmax in torch and in C++, and of silu in Triton, interpreted, took 0 bytes a call in the second half."""


def soaked(
    bench: CaseCache,
    implementation: Implementation,
    dtype: str,
    proof: Pass,
    config: Config | None = None,
    *,
    calls: int = CALLS,
) -> Verdict:
    """The Pass with a statement on `calls` calls in one process; a failure where an answer drifts or memory leaks."""
    case = _case(proof)
    if case is None:
        words = f"not asked: no case of at most {MOST_ELEMENTS} elements was checked"
        return dataclasses.replace(
            proof, statements=(*proof.statements, Statement(name=STATEMENT, holds=None, detail=words))
        )
    try:
        prepared = bench.prepare(case, dtype)
        worker = bench.host.worker(backend(implementation.backend).environment(bench.device))
        try:
            ran = run_once(bench, worker, implementation, prepared, config)
            if not isinstance(ran, Ran):
                words = f"not asked: {ran.reason}"
                return dataclasses.replace(
                    proof, statements=(*proof.statements, Statement(name=STATEMENT, holds=None, detail=words))
                )
            if not isinstance(ran.outcome, Checked):
                return ran.outcome
            return _rounds(bench, worker, ran.launch, prepared, proof, calls)
        finally:
            worker.close()
    except NO_ANSWER as error:
        return verdict_of(error, case, dtype, bench.host.isolation)


def _case(proof: Pass) -> Case | None:
    """The largest of the small cases that were checked."""
    known = {
        checked.case.name: (sum(metrics.elements for metrics in checked.metrics), checked.case)
        for checked in proof.checked
    }
    small = [(size, name) for name, (size, _) in known.items() if 0 < size <= MOST_ELEMENTS]
    return known[max(small)[1]][1] if small else None


def _rounds(bench: CaseCache, worker: Worker, launch: int, prepared: PreparedCase, proof: Pass, calls: int) -> Verdict:
    resident: list[int] = []
    # a kernel in this process shares its memory
    pid = worker.pid if isinstance(worker, ForkedWorker) else os.getpid()
    for number in range(1, ROUNDS + 1):
        prepared.reset()
        for _ in range(calls // ROUNDS):
            answer = worker.request(Run(launch=launch), (), bench.run_limit_s)
            if isinstance(answer, Failure):
                return _broken(bench, prepared, f"after {number * calls // ROUNDS} calls at most: {answer.reason}")
        outcome = judge(prepared, bench.operator, bench.host.isolation, measured=False)
        if not isinstance(outcome, Checked):
            return outcome
        resident.append(resident_bytes(pid))
    half = ROUNDS // 2
    # the first round fills what is kept from then on
    growth = [later - before for before, later in ((resident[0], resident[half]), (resident[half], resident[-1]))]
    each = [grown / (calls // ROUNDS * rounds) for grown, rounds in zip(growth, (half, ROUNDS - 1 - half), strict=True)]
    if min(each) > LEAK:
        return _broken(
            bench,
            prepared,
            f"memory leaks: {units.size(sum(growth))} more of it in {calls} calls, {min(each):.0f} bytes a call",
        )
    words = f"{calls} calls, judged {ROUNDS} times; {max(0.0, each[1]):.0f} bytes a call in their second half"
    return dataclasses.replace(
        proof, statements=(*proof.statements, Statement(name=STATEMENT, holds=True, detail=words))
    )


def _broken(bench: CaseCache, prepared: PreparedCase, reason: str) -> Broken:
    return Broken(case=prepared.case, dtype=prepared.dtype, reason=reason, isolation=bench.host.isolation)


def resident_bytes(pid: int) -> int:
    """Memory of its own that a process holds now: resident, and not shared with a file or another process."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0
