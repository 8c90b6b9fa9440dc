"""Points bound to one workload side by side, and found right there or not. Their compilers and libraries work at the
same time, not one after another: each is run once on content that nobody judges. After the times have been taken, the
workers are given back.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from opforge.backends import Missing, backend
from opforge.backends.module_loading import installed
from opforge.core.definition.implementation import COMPARED_AS_IS, Config, Implementation, Rejected
from opforge.core.evidence.verdict import (
    Broken,
    Checked,
    Inaccurate,
    LibraryFallback,
    Pass,
    Proof,
    Unsupported,
    Verdict,
)
from opforge.core.language import spans
from opforge.runner import Host, Worker, WorkerDied, WorkerLate, fill, fresh_seed
from opforge.runner.wire.messages import Failure, LaunchBound, Run
from opforge.timing import Candidate, MeasurementFailed
from opforge.timing.worker_requests import asker, on_terms
from opforge.trial.baselines import on_the_workload
from opforge.trial.setting import Setting
from opforge.verify import CaseCache, CaseRun, PreparedCase, bind_blind, judge, run_bound, run_of
from opforge.verify.judging.exception_verdicts import NO_ANSWER, crash_of, verdict_of
from opforge.verify.judging.run_case import Ran, first_run

BindAnswer = tuple[CaseRun, LaunchBound | Failure]

ON_A_GPU = {
    "torch": "torch",
    "compile": "torch",
    "triton": "triton",
    "cuda": "tvm_ffi",
    "tilelang": "tilelang",
    "library": "torch",
}
"""Backends that run on a GPU, and the package without which they don't."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """What is tried: an implementation in a config (None: its default), with the proof that it has from the operator's
    cases (None: not asked yet).
    """

    implementation: Implementation
    proof: Proof | None = None
    config: Config | None = None


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A point that is right on the workload, bound to it in a process that lives on.

    proof      what its time may rest on, the workload's own check included
    launch     the number of its launch in the worker; `on_terms`: by terms, the launches that can be timed
    limit_s    seconds after which it is ended where it does not answer
    """

    point: Point
    proof: Proof
    worker: Worker
    launch: int
    on_terms: dict[str, int]
    limit_s: float

    def candidates(self) -> list[Candidate]:
        """One for each of the terms, to be measured once."""
        item, ask = self.point, asker(self.worker, self.limit_s)
        name = f"{item.implementation.name} [{item.config or item.implementation.default}]"
        excused = bool(item.implementation.inaccurate) and item.implementation.backend in COMPARED_AS_IS
        return [
            Candidate(
                name=f"{name} · {terms}",
                proof=self.proof,
                ask=ask,
                launch=launch,
                terms=terms,
                inaccurate=excused,
            )
            for terms, launch in self.on_terms.items()
        ]


@dataclass(frozen=True, kw_only=True)
class NotReady:
    """A point that is not timed on the workload: `verdict` says why. Its worker has been given back.

    struck   a signal from outside ended that worker: once more tells whether the verdict is the kernel's
    """

    point: Point
    verdict: Verdict
    struck: bool = False


def get_ready(host: Host, implementations: Iterable[Implementation], device: str) -> None:
    """Let the processes that workers come from start side by side now: each imports a toolchain, which takes
    seconds.
    """
    able = (backend(item.backend) for item in implementations)
    host.ready(item.environment(device) for item in able if not isinstance(item.execution_mode(device), Missing))


def start_ahead(host: Host, implementations: Iterable[Implementation], device: str) -> None:
    """As `get_ready`, before this process itself has PyTorch, whose import takes seconds: where an NVIDIA GPU is asked
    for, or would be taken (`device` ""), and there are processors for all. What nobody wants afterwards cost a process.
    """
    if device in ("", "cuda") and any(Path("/dev").glob("nvidia[0-9]*")) and (os.cpu_count() or 1) > len(ON_A_GPU):
        names = {item.backend for item in implementations}
        host.ready(
            backend(name).environment("cuda")
            for name, package in ON_A_GPU.items()
            if name in names and installed(package)
        )


def bind(setting: Setting, points: Sequence[Point]) -> list[Ready | NotReady]:
    """Each point bound to the workload's memory in a worker of its own, run and judged, in the order given.

    Raises NotNow, after all workers were given back.
    """
    workers: dict[int, Worker] = {}
    outcomes: list[Ready | NotReady] = []
    try:
        for place, (point, asked) in enumerate(zip(points, _side_by_side(setting, points, workers), strict=True)):
            outcomes.append(_on_the_workload(setting, point, asked))
            if isinstance(outcomes[-1], NotReady) and place in workers:
                setting.pool.leave(point.implementation, workers.pop(place), whole=False)
    except BaseException:
        for place, worker in workers.items():
            setting.pool.leave(points[place].implementation, worker, whole=False)
        raise
    return outcomes


def leave(setting: Setting, ready: Iterable[Ready], whole: Collection[Ready] = ()) -> None:
    """Give the workers back. Those of `whole`, in which nothing went wrong, may be kept by the pool, their launches
    forgotten.
    """

    def give(item: Ready) -> None:
        kept = any(item is other for other in whole)
        setting.pool.leave(
            item.point.implementation, item.worker, whole=kept, launches=tuple({item.launch, *item.on_terms.values()})
        )

    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(give, ready))


def _on_the_workload(setting: Setting, point: Point, asked: Future[BindAnswer]) -> Ready | NotReady:
    """What one point is on the workload, once it is bound or could not be."""
    prepared = setting.prepared

    def broken(reason: str) -> NotReady:
        return NotReady(
            point=point,
            verdict=Broken(case=prepared.case, dtype=prepared.dtype, reason=reason, isolation=setting.isolation),
        )

    try:
        run, answer = asked.result()
        worker = run.worker
        ran = (run_bound if setting.measured else _run_bound)(run, prepared, answer)
        if isinstance(ran, Rejected):
            return NotReady(point=point, verdict=Unsupported(reason=ran.reason))
        launch, outcome = ran.launch, ran.outcome
        verdict = on_the_workload(
            point.implementation, point.proof or Pass(checked=(), not_taken=(), isolation=setting.isolation), outcome
        )
        if not isinstance(verdict, Pass | Inaccurate):
            return NotReady(point=point, verdict=verdict)
        setting.clock.look(worker)
        ask = asker(worker, setting.limit_s)
        numbers = {terms: on_terms(ask, launch, terms) for terms in setting.terms}
    except NO_ANSWER as error:
        if isinstance(error, WorkerDied) and error.struck:
            verdict = crash_of(error, prepared.case, prepared.dtype, setting.isolation)
            return NotReady(point=point, verdict=verdict, struck=True)
        return NotReady(point=point, verdict=verdict_of(error, prepared.case, prepared.dtype, setting.isolation))
    except MeasurementFailed as error:
        return broken(f"not timed: {error}")
    possible = {terms: number for terms, number in numbers.items() if number is not None}
    return Ready(point=point, proof=verdict, worker=worker, launch=launch, on_terms=possible, limit_s=setting.limit_s)


@spans.spanned(
    lambda setting, points, workers: (
        "bind",
        f"{setting.cases.operator.name} {setting.prepared.case.name} {setting.prepared.dtype}",
        "",
    )
)
def _side_by_side(setting: Setting, points: Sequence[Point], workers: dict[int, Worker]) -> list[Future[BindAnswer]]:
    """Each point bound to the memory, in a worker of its own; and, where several may work at once, run once on other
    values.

    The memory holds nothing while they are bound. `workers` gets every worker that was started, by the point's place.
    """
    cases, prepared = setting.cases, setting.prepared

    def start(place: int) -> BindAnswer:
        point = points[place]
        workers[place] = worker = setting.pool.take(point.implementation)
        run = run_of(cases, worker, point.implementation, prepared, point.config)
        return run, bind_blind(run)

    if cases.host.guards.blind_bind:
        _poison(prepared)
    with ThreadPoolExecutor(max_workers=setting.at_once) as pool:
        asked = [pool.submit(start, place) for place in range(len(points))]
    if setting.at_once > 1 and len(points) > 1:
        # of other values than those that will be judged: an answer that is kept from now is wrong then
        _other_values(cases, prepared)
        with ThreadPoolExecutor(max_workers=setting.at_once) as pool:
            return list(pool.map(_run_once, asked))
    return asked


def _run_bound(run: CaseRun, prepared: PreparedCase, answer: LaunchBound | Failure) -> Ran | Rejected:
    """As `run_bound`, without metrics of what is right."""
    prepared.reset()
    started = first_run(run, answer)
    if isinstance(started, Rejected):
        return started
    if isinstance(started, Broken):
        return Ran(0, started)
    outcome = judge(prepared, run.bench.operator, run.bench.host.isolation, measured=False)
    if isinstance(started, LibraryFallback):
        return Ran(0, started if isinstance(outcome, Checked) else outcome)
    return Ran(started.launch, outcome)


@spans.spanned(lambda prepared: ("poison", "", ""))
def _poison(prepared: PreparedCase) -> None:
    """Let the case's memory hold nothing; written where it is judged: a gigabyte takes a CPU half a second."""
    here = prepared.arena if prepared.place.type == "cpu" else prepared.arena.mirror(prepared.place, filled=False)
    here.poison(fresh_seed())
    if here is not prepared.arena:
        prepared.arena.bytes().copy_(here.bytes())


def _other_values(cases: CaseCache, prepared: PreparedCase) -> None:
    """Fill the case's memory with values of a seed of its own, where it is judged: on a device if it is large."""
    here = prepared.arena if prepared.place.type == "cpu" else prepared.arena.mirror(prepared.place, filled=False)
    here.poison(fresh_seed())
    fill(here, cases.operator, prepared.case, fresh_seed())
    if here is not prepared.arena:
        prepared.arena.bytes().copy_(here.bytes())


def _run_once(future: Future[BindAnswer]) -> Future[BindAnswer]:
    """The same future, or one that raises what a first call ended the worker with. What else comes of that call nobody
    looks at.
    """
    if future.exception() is not None:
        return future
    run, answer = future.result()
    if isinstance(answer, Failure):
        return future
    try:
        with spans.span("first run"):
            run.worker.request(Run(launch=answer.launch), (), run.bench.run_limit_s)
    except (WorkerDied, WorkerLate) as error:
        ended_now: Future[BindAnswer] = Future()
        ended_now.set_exception(error)
        return ended_now
    return future
