"""The main job: every implementation verified, those that pass timed together on each workload, everything recorded."""

from __future__ import annotations

import contextlib
import datetime
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from opforge.backends import Native, Stood, backend, backends
from opforge.backends.shared_code import source_sha256
from opforge.core.errors import EnvironmentLacks, NotNow, UsageError, unknown
from opforge.core.implementation import Implementation
from opforge.core.operator import Case, Operator, Workload
from opforge.core.record import Environment, Record
from opforge.core.timing import Timing
from opforge.core.verdict import Broken, Checked, Crash, Pass, Timeout, Unsupported, Verdict
from opforge.machine import detect, environment
from opforge.registry import Registry
from opforge.roofline import bound, suspect
from opforge.runner import RELIEF, Host, Worker, WorkerDied, WorkerLate
from opforge.timing import Contestant, Plan, Probe, measure
from opforge.timing.asking import Loop, asker, look_at_clocks
from opforge.verdicts import BRIEF, QUICK, Bench, Effort, Prepared, bind_blind, run_bound, verify
from opforge.workbench.adequate import ensure_adequate
from opforge.workbench.ahead import compiling_ahead
from opforge.workbench.audit import CONTENTS, audit


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to bench.

    device            torch device type: "cpu", "cuda", …
    dtypes            which of the operator's dtypes; empty means all
    backends          which backends; empty means all
    implementations   which implementations by name; empty means all
    workloads         which workloads by name; empty means those whose scale fits the device
    most              at most the first so many of them; 0 means all
    timed             False stops after verification
    effort            how much verification may cost: verdicts.DEFAULT, BRIEF or QUICK
    """

    device: str = "cpu"
    dtypes: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    implementations: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    most: int = 0
    timed: bool = True
    effort: Effort = BRIEF
    plan: Plan = field(default_factory=Plan)


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened, for whoever shows progress: `stage` is "verify", "time" or "record"; `done` of `total` steps."""

    stage: str
    operator: str
    what: str
    done: int
    total: int
    record: Record | None = None


Listener = Callable[[Event], None]


def workloads_for(operator: Operator, options: Options) -> tuple[Workload, ...]:
    """The workloads to time: those named, else those whose scale fits the device."""
    if options.workloads:
        return tuple(workload for workload in operator.workloads if workload.name in options.workloads)
    scale = "laptop" if options.device == "cpu" else "gpu"
    fitting = tuple(workload for workload in operator.workloads if workload.scale == scale)
    return fitting[: options.most] if options.most else fitting


def chosen(registry: Registry, operator: Operator, options: Options) -> tuple[Implementation, ...]:
    """The implementations to bench, in the operator's order."""
    for name in options.implementations:
        if "_" in name:
            registry.implementation(operator.name, name)
    return tuple(
        implementation
        for implementation in registry.implementations(operator.name)
        if (not options.backends or implementation.backend in options.backends) and (not options.implementations or implementation.name in options.implementations)
    )


def ensure_chosen(registry: Registry, names: Sequence[str], options: Options) -> None:
    """Raises UsageError when the options leave nothing of the named operators to verify, saying which option it is."""
    left = {name: chosen(registry, registry.operator(name), options) for name in names}
    words = ", ".join(names)
    known = {item.name for name in names for item in registry.implementations(name)}
    strange = next((name for name in options.implementations if name not in known), None)
    if strange is not None:
        raise unknown("implementation", strange, sorted(known))
    if not any(left.values()):
        raise UsageError(f"No implementation of {words} fits the backends and implementations asked for. See: opforge show {names[0]}")
    has = sorted({dtype for name in names if left[name] for dtype in registry.operator(name).dtypes})
    if options.dtypes and not set(options.dtypes) & set(has):
        raise UsageError(f"{words}: nothing is defined for {', '.join(options.dtypes)}. Choose from: {', '.join(has)}.")


@dataclass(kw_only=True)
class _Job:
    """One operator being benched in one run."""

    registry: Registry
    operator: Operator
    options: Options
    host: Host
    listener: Listener
    environment: Environment
    run: str
    cases: Bench
    unjudged: list[tuple[str, Exception]]
    loops: list[Loop] = field(default_factory=list)
    done: int = 0
    total: int = 0

    def step(self, stage: str, what: str, record: Record | None = None) -> None:
        self.done += stage != "record"
        self.listener(Event(stage=stage, operator=self.operator.name, what=what, done=self.done, total=self.total, record=record))

    def record(self, implementation: Implementation, case: Workload | Case | None, dtype: str, verdict: Verdict, timing: Timing | None) -> Record:
        """The Record of one result. Without a workload it is a verification, of the operator's cases alone."""
        device = detect(self.options.device)
        axes = dict(case.axes) if case else {}
        scalars = self.operator.scalar_values(case.scalars if case else {})
        cost = self.operator.cost(axes if case else self.operator.cases[0].axes, dtype, scalars)
        form = self.operator.format_of_factors(dtype, scalars)
        roof = bound(cost, device, form, self.operator.unit, cache=timing.cache if timing else "warm") if case else None
        record = Record(
            id=uuid.uuid4().hex,
            created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            operator=self.operator.name,
            implementation=implementation.name,
            backend=implementation.backend,
            source_sha256=source_sha256(implementation.source),
            workload=case.name if case else "",
            axes=axes,
            scalars=scalars,
            dtype=dtype,
            device=device.name,
            config=implementation.default,
            cost=cost,
            verdict=verdict,
            timing=timing,
            roof_s=roof.time_s if roof else None,
            limiter=roof.limiter if roof else None,
            environment=self.environment,
            run=self.run,
        )
        self.step("record", f"{implementation.name} {dtype}", record)
        return record

    def doubted(self, timing: Timing, workload: Workload, dtype: str) -> Timing:
        """The timing, marked where it is better than this device was measured to be."""
        operator = self.operator
        form = operator.format_of_factors(dtype, workload.scalars)
        return replace(timing, suspect=suspect(operator.cost(workload.axes, dtype, workload.scalars), timing, detect(self.options.device), form, operator.unit))


def bench(registry: Registry, names: Sequence[str], options: Options, host: Host, *, listener: Listener = lambda event: None) -> Iterator[Record]:
    """Records for every chosen implementation × workload × dtype of the named operators, as they are found.

    On a device where a backend's kernels are stood in for (interpreter, emulator), the record has a verdict and no timing. What keeps one
    from its verdict (no process, no memory, a defect) costs the others nothing: it is raised when they have all been given.
    """
    run = uuid.uuid4().hex[:12]
    wanted = [implementation for name in names for implementation in chosen(registry, registry.operator(name), options)]
    unjudged: list[tuple[str, Exception]] = []
    with compiling_ahead(wanted, options.device):
        yield from _bench_all(registry, names, options, host, listener, run, unjudged)
    if unjudged:
        raise _reason(unjudged)


def _reason(unjudged: Sequence[tuple[str, Exception]]) -> Exception:
    """What to tell of those that got no verdict: the machine lacked something, or there is a defect, whose trace is wanted."""
    what, error = unjudged[0]
    words = f"{what} got no verdict" + (f", and {len(unjudged) - 1} more" if len(unjudged) > 1 else "")
    if isinstance(error, (EnvironmentLacks, OSError, MemoryError)) or "out of memory" in str(error).lower():
        reason = str(error) if isinstance(error, EnvironmentLacks) else f"{type(error).__name__}: {error}".removesuffix(".").removesuffix(": ") + f". {RELIEF}"
        lacks = EnvironmentLacks(f"{words}; all others are recorded. {reason}")
        lacks.__cause__ = error
        return lacks
    error.add_note(f"{words}; all others are recorded.")
    return error


def _bench_all(registry: Registry, names: Sequence[str], options: Options, host: Host, listener: Listener, run: str, unjudged: list[tuple[str, Exception]]) -> Iterator[Record]:
    for name in names:
        operator = registry.operator(name)
        cases = Bench(registry=registry, operator=operator, host=host, device=options.device)
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
        )
        try:
            yield from _bench_operator(job)
        finally:
            cases.close()


def environment_of(operator: Operator, options: Options) -> Environment:
    """Where this run happens, and how each backend's kernels are executed here: natively, or by what stands in for the device."""
    found = environment(options.device, operator.folder)
    # times with a warm cache are no step in the history of those with a cold one, which are what is measured beside a GPU
    ways = {"timing.cache": options.plan.cache} if options.timed and options.device != "cpu" and options.plan.cache != "cold" else {}
    for name, item in backends().items():
        way = item.way(options.device)
        ways[f"way.{name}"] = f"native: {way.how}" if isinstance(way, Native) else way.how if isinstance(way, Stood) else f"missing: {way.what}"
    return replace(found, facts={**found.facts, **ways})


def verify_all(registry: Registry, names: Sequence[str], options: Options, host: Host, *, listener: Listener = lambda event: None) -> Iterator[Record]:
    """Verification alone: one Record per implementation × dtype, over the operator's cases."""
    return bench(registry, names, Options(**{**vars(options), "timed": False}), host, listener=listener)


def _effort(implementation: Implementation, options: Options) -> Effort:
    """What verification may cost. torch.compile spends seconds on each new class of shapes, and it is the baseline, made from a
    file that gets all of the cases itself: it gets a selection of them, and before a bench the workload's own graph on top, like everybody's."""
    return QUICK if implementation.backend == "compile" else options.effort


def _bench_operator(job: _Job) -> Iterator[Record]:
    operator, options = job.operator, job.options
    ensure_adequate(operator)
    dtypes = tuple(dtype for dtype in operator.dtypes if not options.dtypes or dtype in options.dtypes)
    implementations = chosen(job.registry, operator, options)
    workloads = workloads_for(operator, options) if options.timed else ()
    taken = {dtype: tuple(workload for workload in workloads if operator.takes(workload, dtype)) for dtype in dtypes}
    job.total = sum(len(implementations) + len(taken[dtype]) for dtype in dtypes)
    verdicts = _verified(job, implementations, dtypes, beside=any(taken.values()))
    for dtype in dtypes:
        passed: list[tuple[Implementation, Pass]] = []
        for implementation in implementations:
            verdict = next(verdicts)
            if verdict is None:
                continue
            way = backend(implementation.backend).way(options.device)
            if isinstance(verdict, Pass) and isinstance(way, Native) and taken[dtype]:
                passed.append((implementation, verdict))
            else:
                yield job.record(implementation, None, dtype, verdict, None)
        recorded: set[str] = set()
        for workload in taken[dtype]:
            job.step("time", f"{workload.name} {dtype}")
            try:
                for record in _time_workload(job, workload, dtype, passed):
                    recorded.add(record.implementation)
                    yield record
            except UsageError:
                raise
            except Exception as error:  # noqa: BLE001 - as with verdicts
                job.unjudged.append((f"{operator.name} {workload.name} {dtype}", error))
        for implementation, proof in passed:
            if implementation.name not in recorded:
                # it could not be timed, and was right
                yield job.record(implementation, None, dtype, proof, None)


def at_once(device: str) -> int:
    """How many kernels may be compiled and verified at the same time: one where they run on the CPU that compiles them."""
    return 1 if device == "cpu" else max(1, min(8, (os.cpu_count() or 2) // 2))


def _verified(job: _Job, implementations: Sequence[Implementation], dtypes: Sequence[str], *, beside: bool) -> Iterator[Verdict | None]:
    """The Verdict of each implementation in each dtype, in this order; None for one that got none, which is then among `job.unjudged`.

    beside   something is timed between them: side by side they are all known before the first is given. Else each is given
             as soon as it and those before it are known
    """
    options = job.options
    wanted = [(implementation, dtype) for dtype in dtypes for implementation in implementations]

    def one(implementation: Implementation, dtype: str, cases: Bench) -> Verdict:
        return verify(cases, implementation, dtype, effort=_effort(implementation, options))

    def alone(implementation: Implementation, dtype: str) -> Verdict:
        # with memory and cases of its own
        with contextlib.closing(Bench(registry=job.registry, operator=job.operator, host=job.host, device=options.device)) as cases:
            return one(implementation, dtype, cases)

    def told(implementation: Implementation, dtype: str, ask: Callable[[], Verdict]) -> Verdict | None:
        job.step("verify", f"{implementation.name} {dtype}")
        try:
            return ask()
        except UsageError:
            # the definition itself is wrong: so it is for all of them
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised when the others are on record
            job.unjudged.append((f"{job.operator.name} {implementation.name} {dtype}", error))
            return None

    if at_once(options.device) == 1:
        for implementation, dtype in wanted:
            yield told(implementation, dtype, partial(one, implementation, dtype, job.cases))
        return
    pool = ThreadPoolExecutor(max_workers=at_once(options.device))
    try:
        futures = [(item, pool.submit(alone, *item)) for item in wanted]
        found = (told(*item, future.result) for item, future in futures)
        yield from list(found) if beside else found
    finally:
        # when this is given up, nothing more is begun
        pool.shutdown(wait=False, cancel_futures=True)


def _time_workload(job: _Job, workload: Workload, dtype: str, passed: Sequence[tuple[Implementation, Pass]]) -> Iterator[Record]:
    """Verify each implementation on the workload itself, then time those that pass, taking turns, then verify what the
    timed calls left behind."""
    operator, options, bench_cases = job.operator, job.options, job.cases
    case = Case(name=workload.name, axes=workload.axes, why=workload.source, scalars=workload.scalars)
    prepared = bench_cases.prepare(case, dtype)
    workers: list[Worker] = []
    contestants: list[Contestant] = []
    verdicts: dict[str, Verdict] = {}
    try:
        for (implementation, proof), bound in zip(passed, _bound(job, prepared, [implementation for implementation, _ in passed], workers), strict=True):
            verdict: Verdict
            try:
                worker, answer = bound.result()
                found = run_bound(bench_cases, worker, implementation, prepared, answer)
                if not job.loops and not isinstance(found, str) and isinstance(found[1], Checked):
                    job.loops.append(look_at_clocks(worker, options.device))
            except NotNow:
                raise
            except WorkerDied as error:
                verdict = Crash(case=prepared.case, dtype=dtype, status=error.status, stderr=error.stderr, isolation=job.host.isolation)
            except WorkerLate as error:
                verdict = Timeout(case=prepared.case, dtype=dtype, limit_s=error.limit_s, isolation=job.host.isolation)
            except EnvironmentLacks as error:
                verdict = Unsupported(reason=str(error))
            else:
                if isinstance(found, str):
                    verdict = Unsupported(reason=found)
                elif isinstance(found[1], Checked):
                    verdict = replace(proof, checked=(*proof.checked, found[1]))
                    contestants.append(Contestant(name=implementation.name, proof=verdict, ask=asker(worker), launch=found[0]))
                else:
                    verdict = found[1]
            verdicts[implementation.name] = verdict
        timings = _measured(job, contestants)
        unseen = [bench_cases.refresh(prepared) for _ in range(CONTENTS)] if contestants else []
        for implementation, _ in passed:
            name = implementation.name
            timing = timings.get(name)
            if isinstance(timing, str):
                verdicts[name] = Broken(case=prepared.case, dtype=dtype, reason=f"not timed: {timing}", isolation=job.host.isolation)
            contestant = next((contestant for contestant in contestants if contestant.name == name), None)
            if contestant is not None and isinstance(timing, Timing):
                after = audit(contestant, timing, unseen, operator, job.host.isolation)
                verdicts[name] = after or verdicts[name]
            kept = job.doubted(timing, workload, dtype) if isinstance(timing, Timing) and isinstance(verdicts[name], Pass) else None
            yield job.record(implementation, workload, dtype, verdicts[name], kept)
    finally:
        for worker in workers:
            worker.close()
        bench_cases.forget(case)


def _bound(job: _Job, prepared: Prepared, implementations: Sequence[Implementation], workers: list[Worker]) -> list[Future[tuple[Worker, dict[str, Any]]]]:
    """Each implementation bound to the memory of a case, in a worker of its own: compiled side by side, before anything is timed.

    The memory holds nothing while they are bound. `workers` gets every worker that was started.
    """
    cases, options = job.cases, job.options

    def bind(implementation: Implementation) -> tuple[Worker, dict[str, Any]]:
        worker = job.host.worker(backend(implementation.backend).environment(options.device))
        workers.append(worker)
        return worker, bind_blind(cases, worker, implementation, prepared.case, prepared.dtype, prepared.arena, None)

    if job.host.guards.blind_bind:
        prepared.arena.poison()
    with ThreadPoolExecutor(max_workers=at_once(options.device)) as pool:
        return [pool.submit(bind, implementation) for implementation in implementations]


def _measured(job: _Job, contestants: list[Contestant]) -> dict[str, Timing | str]:
    if not contestants:
        return {}
    loop = job.loops[-1]
    probe = Probe(job.options.device)
    return measure(
        contestants,
        job.options.plan,
        overhead_s=loop.overhead_s,
        resolution_s=loop.resolution_s,
        conditions=loop.conditions,
        device=job.options.device,
        probe=probe.read,
    )
