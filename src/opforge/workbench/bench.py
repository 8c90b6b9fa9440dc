"""The main job: every implementation verified, those that pass timed together on each workload, everything recorded."""

from __future__ import annotations

import contextlib
import math
import os
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from opforge.backends import Emulated, Native, backend, backends
from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.implementation import COMPARED_AS_IS, Config, Implementation, Rejected
from opforge.core.definition.operator import Operator, Workload
from opforge.core.evidence.record import CONFIG, MODE, Environment, Record
from opforge.core.evidence.timing import Timing, Untimed
from opforge.core.evidence.verdict import Inaccurate, Pass, Unsupported, Verdict
from opforge.core.language.errors import Inadequate, OpforgeError, UsageError, all_of
from opforge.machine import detect, environment
from opforge.registry import Registry
from opforge.runner import Host
from opforge.trial import (
    BRIEFLY,
    Clock,
    NotReady,
    Point,
    Ready,
    Setting,
    believed,
    bind,
    check,
    compile_seconds,
    compiling_ahead,
    ensure_adequate,
    far_values,
    get_ready,
    leave,
    outrun,
    recorded,
    unseen_contents,
)
from opforge.verify import QUICK, CaseCache, Effort, WorkerPool
from opforge.verify.judging.exception_verdicts import crash_of
from opforge.workbench.bench_options import (
    BenchOptions as BenchOptions,
    Event as Event,
    Listener as Listener,
    chosen as chosen,
    ensure_chosen as ensure_chosen,
    workloads_for as workloads_for,
)
from opforge.workbench.configs import configs_of
from opforge.workbench.shape_verification import as_case, verify_shape
from opforge.workbench.unjudged import error_of

STRUCK = "a signal from outside ended a worker while this was timed first; timed again in new workers"


@dataclass(kw_only=True)
class _Job:
    """One operator being benched in one run."""

    registry: Registry
    operator: Operator
    options: BenchOptions
    host: Host
    listener: Listener
    environment: Environment
    run: str
    cases: CaseCache
    unjudged: list[tuple[str, Exception]]
    pool: WorkerPool
    clock: Clock
    done: int = 0
    total: int = 0

    def step(self, stage: str, what: str, record: Record | None = None) -> None:
        self.done += stage != "record"
        self.listener(
            Event(stage=stage, operator=self.operator.name, what=what, done=self.done, total=self.total, record=record)
        )

    def record(
        self,
        point: Point,
        case: Workload | None,
        dtype: str,
        verdict: Verdict,
        timing: Timing | Untimed | None = None,
        trial: bool = False,
    ) -> Record:
        """The Record of one result. Without a workload it is a verification, of the operator's cases alone."""
        # a config that somebody tries is no step in the history of the default
        facts = {CONFIG: str(point.config)} if point.config not in (None, point.implementation.default) else {}
        key = (point.implementation.name, dtype, point.config)
        compiled_s = compile_seconds(point.implementation, point.config, self.options.device)
        record = recorded(
            self.operator,
            point.implementation,
            case,
            dtype,
            verdict,
            timing,
            device=self.options.device,
            environment=replace(self.environment, facts={**self.environment.facts, **facts}),
            run=self.run,
            config=point.config,
            trial=trial,
            printed=self.pool.printed.get(key),
            compile_s=self.pool.compiled_s.get(key) if compiled_s is None else compiled_s,
        )
        self.step("record", f"{point.implementation.name} {dtype}", record)
        return record


def bench(
    registry: Registry,
    names: Sequence[str],
    options: BenchOptions,
    host: Host,
    *,
    listener: Listener = lambda event: None,
) -> Iterator[Record]:
    """Records for every chosen implementation × workload × dtype of the named operators, as they are found.

    On a device where a backend's kernels are emulated (interpreter, emulator), the record has a verdict and no timing.
    What keeps one from its verdict (no process, no memory, a defect) costs the others nothing, nor does a definition
    that is wrong, or accepts what is no answer: it is raised when they have all been given.
    """
    run = uuid.uuid4().hex[:12]
    wanted = [implementation for name in names for implementation in chosen(registry, registry.operator(name), options)]
    unjudged: list[tuple[str, Exception]] = []
    unusable: list[OpforgeError] = []
    get_ready(host, wanted, options.device)
    with compiling_ahead(wanted, options.device):
        yield from _bench_all(registry, names, options, host, listener, run, unjudged, unusable)
    if unusable:
        error = unusable[0] if len(names) == 1 else all_of(unusable, others=len(names) > len(unusable))
        raise error from (error_of(unjudged) if unjudged else error.__cause__)
    if unjudged:
        raise error_of(unjudged)


def _bench_all(
    registry: Registry,
    names: Sequence[str],
    options: BenchOptions,
    host: Host,
    listener: Listener,
    run: str,
    unjudged: list[tuple[str, Exception]],
    unusable: list[OpforgeError],
) -> Iterator[Record]:
    for name in names:
        operator = registry.operator(name)
        pool = WorkerPool(host=host, device=options.device, kept=options.device != "cpu")
        cases = CaseCache(registry=registry, operator=operator, host=host, device=options.device, pool=pool)
        job = _Job(
            registry=registry,
            operator=operator,
            options=options,
            host=host,
            listener=listener,
            environment=environment_of(operator, options),
            run=run,
            cases=cases,
            unjudged=unjudged,
            pool=pool,
            clock=Clock(device=options.device),
        )
        try:
            yield from _bench_operator(job)
        except (Inadequate, UsageError) as error:
            unusable.append(error)
        finally:
            pool.close()
            cases.close()


def environment_of(operator: Operator, options: BenchOptions) -> Environment:
    """Where this run happens, and how each backend's kernels are executed here: natively, or
    interpreted or emulated.
    """
    machine = environment(options.device, operator.folder)
    # times with a warm cache are no step in the history of those with a cold one, which are what is measured beside a
    # GPU
    facts = (
        {"timing.cache": options.plan.cache}
        if options.timed and options.device != "cpu" and options.plan.cache != "cold"
        else {}
    )
    if options.timed:
        # nor are times on other terms, or of the days when none were stated
        facts["timing.terms"] = "stated"
    for name, item in backends().items():
        mode = item.execution_mode(options.device)
        facts[f"{MODE}{name}"] = (
            f"native: {mode.how}"
            if isinstance(mode, Native)
            else mode.how
            if isinstance(mode, Emulated)
            else f"missing: {mode.what}"
        )
    return replace(machine, facts={**machine.facts, **facts})


def verify_all(
    registry: Registry,
    names: Sequence[str],
    options: BenchOptions,
    host: Host,
    *,
    listener: Listener = lambda event: None,
) -> Iterator[Record]:
    """Verification alone: one Record per implementation × dtype, over the operator's cases."""
    return bench(registry, names, BenchOptions(**{**vars(options), "timed": False}), host, listener=listener)


def _effort(implementation: Implementation, options: BenchOptions) -> Effort:
    """What verification may cost. torch.compile spends seconds on each new class of shapes, and it is the baseline,
    made from a file that gets all of the cases itself: it gets a selection of them, and before a bench the workload's
    own graph on top, like everybody's.
    """
    return QUICK if implementation.backend == "compile" else options.effort


def _bench_operator(job: _Job) -> Iterator[Record]:
    operator, options = job.operator, job.options
    ensure_adequate(operator)
    dtypes = tuple(dtype for dtype in operator.dtypes if not options.dtypes or dtype in options.dtypes)
    points = tuple(
        Point(implementation=implementation, config=config)
        for implementation in chosen(job.registry, operator, options)
        for config in configs_of(implementation, options.configs)
    )
    workloads = workloads_for(operator, options) if options.timed or options.workloads else ()
    taken = {
        dtype: tuple(
            workload
            for workload in workloads
            if operator.takes(workload, dtype) and (not options.calls or (workload.name, dtype) in options.calls)
        )
        for dtype in dtypes
    }
    if not options.timed and options.workloads:
        yield from _verify_workloads(job, points, taken)
        return
    job.total = sum(len(points) + len(taken[dtype]) for dtype in dtypes)
    verdicts = _verified(job, points, dtypes, beside=any(taken.values()))
    for dtype in dtypes:
        passed: list[Point] = []
        for point in points:
            verdict = next(verdicts)
            if verdict is None:
                continue
            mode = backend(point.implementation.backend).execution_mode(options.device)
            if isinstance(verdict, Pass | Inaccurate) and isinstance(mode, Native) and taken[dtype]:
                passed.append(replace(point, proof=verdict))
            else:
                yield job.record(point, None, dtype, verdict)
        told: set[tuple[str, Config]] = set()
        for workload in taken[dtype]:
            job.step("time", f"{workload.name} {dtype}")
            try:
                for record in _time_workload(job, workload, dtype, passed):
                    told.add((record.implementation, record.config))
                    yield record
            except UsageError:
                raise
            except Exception as error:  # noqa: BLE001 - as with verdicts
                job.unjudged.append((f"{operator.name} {workload.name} {dtype}", error))
        for point in passed:
            key = point.implementation.name, point.config or point.implementation.default
            if key not in told and point.proof is not None:
                # it could not be timed, and was right
                yield job.record(point, None, dtype, point.proof)


def _verify_workloads(job: _Job, points: Sequence[Point], taken: Mapping[str, Sequence[Workload]]) -> Iterator[Record]:
    """Verification at the workloads that are named, and nowhere else."""
    job.total = len(points) * sum(len(workloads) for workloads in taken.values())
    for dtype, workloads in taken.items():
        for workload in workloads:
            for point in points:
                name = point.implementation.name
                job.step("verify", f"{name} {workload.name} {dtype}")
                try:
                    verdict = verify_shape(job.cases, point.implementation, workload, dtype, point.config)
                except UsageError:
                    raise
                except Exception as error:  # noqa: BLE001 - as with verdicts
                    job.unjudged.append((f"{job.operator.name} {name} {workload.name} {dtype}", error))
                    continue
                yield job.record(point, workload, dtype, verdict, trial=True)


def at_once(device: str) -> int:
    """How many kernels may be compiled and verified at the same time: one where they run on the CPU that
    compiles them.
    """
    return 1 if device == "cpu" else max(1, min(8, (os.cpu_count() or 2) // 2))


def _verified(job: _Job, points: Sequence[Point], dtypes: Sequence[str], *, beside: bool) -> Iterator[Verdict | None]:
    """The Verdict of each point in each dtype, in this order; None for one that got none, which is then among
    `job.unjudged`.

    beside   something is timed between them: side by side they are all known before the first is given. Else each is
             given as soon as it and those before it are known
    """
    options = job.options
    wanted = [(point, dtype) for dtype in dtypes for point in points]

    def one(point: Point, dtype: str, cases: CaseCache) -> Verdict:
        item = point.implementation
        default = point.config in (None, item.default)
        known = options.proven.get((job.operator.name, item.name, dtype)) if options.timed and default else None
        return known or check(cases, item, dtype, _effort(item, options), point.config)

    def alone(point: Point, dtype: str) -> Verdict:
        # with memory and cases of its own
        with contextlib.closing(
            CaseCache(registry=job.registry, operator=job.operator, host=job.host, device=options.device, pool=job.pool)
        ) as cases:
            return one(point, dtype, cases)

    def told(point: Point, dtype: str, ask: Callable[[], Verdict]) -> Verdict | None:
        name = f"{point.implementation.name}{f' [{point.config}]' if point.config else ''} {dtype}"
        job.step("verify", name)
        try:
            return ask()
        except UsageError:
            # the definition itself is wrong: so it is for all of them
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised when the others are on record
            job.unjudged.append((f"{job.operator.name} {name}", error))
            return None

    if at_once(options.device) == 1:
        for point, dtype in wanted:
            yield told(point, dtype, partial(one, point, dtype, job.cases))
        return
    pool = ThreadPoolExecutor(max_workers=at_once(options.device))
    try:
        futures = [(item, pool.submit(alone, *item)) for item in wanted]
        verdicts = (told(*item, future.result) for item, future in futures)
        yield from list(verdicts) if beside else verdicts
    finally:
        # when this is given up, nothing more is begun
        pool.shutdown(wait=False, cancel_futures=True)


def _time_workload(
    job: _Job, workload: Workload, dtype: str, passed: Sequence[Point], *, again: bool = False
) -> Iterator[Record]:
    """Verify each implementation on the workload itself, then time those that pass, interleaved, then verify what the
    timed calls left behind. Where a signal from outside ends a worker, what is not recorded yet is done once more, in
    new workers (`again`).
    """
    case = as_case(workload)
    passed = yield from _within_limits(job, workload, dtype, passed)
    setting = Setting(
        cases=job.cases,
        pool=job.pool,
        prepared=job.cases.prepare(case, dtype),
        clock=job.clock,
        terms=job.options.terms,
        at_once=at_once(job.options.device),
    )
    ready: list[Ready] = []
    whole: list[Ready] = []
    struck: list[Point] = []
    try:
        bound = bind(setting, passed)
        ready += [item for item in bound if isinstance(item, Ready)]
        candidates = {id(item): item.candidates() for item in ready}
        timings = setting.timed([each for item in ready for each in candidates[id(item)]], job.options.plan)
        told = dict(zip((each.name for item in ready for each in candidates[id(item)]), timings, strict=True))
        if not again and any(item.worker.struck() if isinstance(item, Ready) else item.struck for item in bound):
            # interleaved with the others, or not at all
            struck = list(passed)
            bound, ready, stopped = [], [], ready
            leave(setting, stopped)
        far = far_values(setting) if ready else None
        unseen = unseen_contents(setting) if ready else []
        for item in bound:
            if isinstance(item, NotReady):
                yield job.record(item.point, workload, dtype, item.verdict)
        standing: dict[str, float] = {}

        def least_s(item: Ready) -> float:
            times = (told[each.name] for each in candidates[id(item)])
            return min((time.median_s for time in times if isinstance(time, Timing)), default=math.inf)

        # the fastest first: only beside a time that stands is another one hopeless
        for item in sorted(ready, key=least_s):
            records = []
            for candidate in candidates[id(item)]:
                timing = told[candidate.name]
                baseline = item.point.implementation.backend in COMPARED_AS_IS
                brief = outrun(timing, standing.get(candidate.terms, math.inf), baseline=baseline)
                verdict = believed(setting, candidate, timing, unseen, far, brief)
                died = item.worker.struck()
                if died is not None and not again:
                    struck.append(item.point)
                    break
                if died is not None:
                    verdict = crash_of(died, setting.prepared.case, dtype, setting.isolation)
                elif again and isinstance(timing, Timing):
                    timing = replace(timing, conditions=(*timing.conditions, STRUCK))
                if isinstance(timing, Timing) and brief:
                    timing = replace(timing, conditions=(*timing.conditions, BRIEFLY))
                if isinstance(timing, Timing) and isinstance(verdict, Pass):
                    standing.setdefault(candidate.terms, timing.median_s)
                records.append(job.record(item.point, workload, dtype, verdict, timing))
                yield records[-1]
            if not records:
                if item.point not in struck:
                    yield job.record(item.point, workload, dtype, item.proof)
            elif all(record.timing is not None for record in records):
                whole.append(item)
    finally:
        leave(setting, ready, whole)
        job.cases.forget(case)
    if struck:
        yield from _time_workload(job, workload, dtype, struck, again=True)


def _within_limits(
    job: _Job, workload: Workload, dtype: str, points: Sequence[Point]
) -> Generator[Record, None, list[Point]]:
    """The points to time on the workload; a Record that says so for each config that its own limits rule out there."""
    within = []
    scalars, bounds = job.operator.scalar_values(workload.scalars), detect(job.options.device).bounds()
    for point in points:
        answer = (
            point.implementation.allows(point.config, workload.axes, dtype, DTYPES[dtype].itemsize, scalars, bounds)
            if point.config not in (None, point.implementation.default)
            else None
        )
        if isinstance(answer, Rejected):
            why = f"its limits rule {point.config} out on {workload.name}: {answer.reason}"
            yield job.record(point, workload, dtype, Unsupported(reason=why))
        else:
            within.append(point)
    return within
