"""Whether one thread is right where several are wrong: a race, whatever the pattern of what is wrong looks like."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from opforge.backends import backend
from opforge.core.definition.implementation import Config, Implementation
from opforge.core.evidence.verdict import Checked, Mismatch
from opforge.core.language.errors import EnvironmentLacks, UsageError
from opforge.runner import Worker, WorkerDied, WorkerLate
from opforge.verify.cases.case_cache import CaseCache
from opforge.verify.judging.run_case import Ran, run_once

THREADS = "OMP_NUM_THREADS"
THREADED = re.compile(r"omp|parallel|thread")
"""Words of a source without which it has one thread."""
TRIES = 3
CAUSE = (
    "a race: right with one thread and wrong with several, on the same inputs. Threads write the same memory, or one "
    "reads what another has not written yet"
)


def race(
    bench: CaseCache, implementation: Implementation, dtype: str, config: Config | None, failure: Mismatch
) -> str | None:
    """The cause, where a C++ kernel's failure goes away with all threads but one, and comes back with them."""
    if not may_race(bench, implementation):
        return None
    try:
        with one_thread(bench, implementation) as worker:
            alone = _runs(bench, worker, implementation, dtype, config, failure)
        if not all(alone):
            return None
        worker = bench.host.worker(backend(implementation.backend).environment(bench.device))
        try:
            together = _runs(bench, worker, implementation, dtype, config, failure)
        finally:
            worker.close()
    except (WorkerDied, WorkerLate, EnvironmentLacks, UsageError, OSError, MemoryError):
        # found is found: where its process cannot be had once more, the cause is told by the pattern
        return None
    return None if all(together) else CAUSE


def may_race(bench: CaseCache, implementation: Implementation) -> bool:
    """Whether it is a C++ kernel with threads of its own, here."""
    return (
        implementation.backend == "cpp"
        and bench.device == "cpu"
        and os.environ.get(THREADS) != "1"
        and THREADED.search(implementation.source.read_text(encoding="utf-8")) is not None
    )


@contextmanager
def one_thread(bench: CaseCache, implementation: Implementation) -> Iterator[Worker]:
    """A worker in which OpenMP has one thread."""
    worker = bench.host.worker({**backend(implementation.backend).environment(bench.device), THREADS: "1"})
    try:
        yield worker
    finally:
        worker.close()


def _runs(
    bench: CaseCache,
    worker: Worker,
    implementation: Implementation,
    dtype: str,
    config: Config | None,
    failure: Mismatch,
) -> list[bool]:
    """Whether each of some runs of the failing case is right."""
    prepared = bench.prepare(failure.case, dtype)
    found: list[bool] = []
    while len(found) < TRIES and all(found):
        ran = run_once(bench, worker, implementation, prepared, config)
        found.append(isinstance(ran, Ran) and isinstance(ran.outcome, Checked))
    return found
