"""The job: for each workload and dtype, try points of each implementation, then let the best of each meet, and keep the winner.

A point is verified on a selection of the operator's cases and on the workload itself, in a process of its own, then timed
in turns with the best point until then, whose process lives on. The winner is verified with all cases before it is kept.
"""

from __future__ import annotations

import datetime
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from opforge.backends import Native, backend
from opforge.backends.shared_code import source_sha256
from opforge.core.dtypes import DTYPES
from opforge.core.errors import EnvironmentLacks
from opforge.core.implementation import Config, Implementation, Rejected
from opforge.core.operator import Case, Operator, Workload
from opforge.core.record import Environment, Record
from opforge.core.timing import Timing
from opforge.core.verdict import Broken, Checked, Crash, Pass, Timeout, Unsupported, Verdict
from opforge.machine import detect, environment
from opforge.registry import Registry
from opforge.roofline import bound, suspect
from opforge.runner import Host, Worker, WorkerDied, WorkerLate
from opforge.timing import Contestant, measure
from opforge.timing.asking import Loop, asker, look_at_clocks
from opforge.tuning.choices import before, choices_path, keep
from opforge.tuning.codes import Codes
from opforge.tuning.search import Search, valid_points
from opforge.tuning.trial import FAILED, SAME_CODE, TIMED, Options, Trial, Tuned
from opforge.verdicts import BRIEF, QUICK, Bench, Prepared, judge, run_once, verify
from opforge.verdicts.adequacy import require

POINT = replace(QUICK, hidden=0, repeats=0, seconds=0.0, least_hidden=0, shrink_s=0.0)
"""What a point is verified with: a selection of the operator's cases. The winner gets BRIEF."""

SECOND_LOOK, FINAL_SAMPLES = 2.0, 3.0
"""A point that seems faster than the best, and the final, are measured so many times as long as a trial."""

Listener = Callable[[Trial], None]


@dataclass(kw_only=True)
class Champion:
    """A point that passed, bound to the workload in a process that lives on; and its time, once it was measured."""

    implementation: Implementation
    config: Config
    proof: Pass
    worker: Worker
    launch: int
    timing: Timing | None = None

    def contestant(self) -> Contestant:
        """To be measured once more."""
        return Contestant(name=f"{self.implementation.name} [{self.config}]", proof=self.proof, ask=asker(self.worker), launch=self.launch)


@dataclass(kw_only=True)
class _Job:
    """One workload and dtype being tuned."""

    registry: Registry
    operator: Operator
    options: Options
    host: Host
    bench: Bench
    environment: Environment
    run: str
    workload: Workload
    dtype: str
    prepared: Prepared
    add: Callable[[Record], None]
    listener: Listener
    timer: str = ""
    loop: Loop | None = None
    counts: dict[str, int] = field(default_factory=lambda: {TIMED: 0, SAME_CODE: 0, FAILED: 0})

    def record(self, implementation: Implementation, config: Config, verdict: Verdict, timing: Timing | None) -> Record:
        """A Record, put into the store."""
        operator, device = self.operator, detect(self.options.device)
        cost = operator.cost(self.workload.axes, self.dtype, self.workload.scalars)
        form = operator.format_of_factors(self.dtype, self.workload.scalars)
        roof = bound(cost, device, form, operator.unit, cache=timing.cache if timing else "warm")
        kept = replace(timing, suspect=suspect(cost, timing, device, form, operator.unit)) if timing else None
        made = Record(
            id=uuid.uuid4().hex,
            created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            operator=operator.name,
            implementation=implementation.name,
            backend=implementation.backend,
            source_sha256=source_sha256(implementation.source),
            workload=self.workload.name,
            axes=dict(self.workload.axes),
            scalars=operator.scalar_values(self.workload.scalars),
            dtype=self.dtype,
            device=device.name,
            config=config,
            cost=cost,
            verdict=verdict,
            timing=kept,
            roof_s=roof.time_s if roof else None,
            limiter=roof.limiter if roof else None,
            environment=self.environment,
            run=self.run,
        )
        self.add(made)
        return made

    def measure(self, contestants: Sequence[Contestant], factor: float = 1.0) -> list[Timing | str]:
        """Timings, in turns, in the order given; the clock that the first kernel got is everybody's."""
        plan = replace(self.options.plan, samples=round(self.options.plan.samples * factor), budget_s=self.options.plan.budget_s * factor)
        assert self.loop is not None
        found = measure(
            contestants,
            plan,
            timer=self.timer,
            overhead_s=self.loop.overhead_s,
            resolution_s=self.loop.resolution_s,
            conditions=self.loop.conditions,
            device=self.options.device,
        )
        timings = [found[contestant.name] for contestant in contestants]
        if not self.timer and isinstance(timings[0], Timing):
            self.timer = timings[0].timer
        return timings


def tune(
    registry: Registry,
    name: str,
    options: Options,
    host: Host,
    *,
    add: Callable[[Record], None],
    listener: Listener = lambda trial: None,
    write: bool = True,
) -> Iterator[Tuned]:
    """A Tuned for every dtype × workload of an operator, as they are found.

    add     gets the Record of every trial, failures and points with known code too
    write   False leaves `tuned/<device>.json` as it is
    Raises UsageError for unknown names, and where the choices cannot be written.
    """
    operator = registry.operator(name)
    require(operator)
    bench = Bench(registry=registry, operator=operator, host=host, device=options.device)
    here = environment(options.device, operator.folder)
    run = f"tune-{uuid.uuid4().hex[:8]}"
    try:
        for dtype in [dtype for dtype in operator.dtypes if not options.dtypes or dtype in options.dtypes]:
            for workload in (found for found in _workloads(operator, options) if operator.takes(found, dtype)):
                case = Case(name=workload.name, axes=workload.axes, why=workload.source, scalars=workload.scalars)
                job = _Job(
                    registry=registry,
                    operator=operator,
                    options=options,
                    host=host,
                    bench=bench,
                    environment=here,
                    run=run,
                    workload=workload,
                    dtype=dtype,
                    prepared=bench.prepare(case, dtype),
                    add=add,
                    listener=listener,
                )
                try:
                    yield _tune_workload(job, write)
                finally:
                    bench.forget(case)
    finally:
        bench.close()


def _workloads(operator: Operator, options: Options) -> tuple[Workload, ...]:
    scale = "laptop" if options.device == "cpu" else "gpu"
    return tuple(workload for workload in operator.workloads if (workload.name in options.workloads if options.workloads else workload.scale == scale))


def candidates(registry: Registry, operator: Operator, workload: Workload, dtype: str, options: Options) -> list[Implementation]:
    """The implementations that run natively on the device, were asked for, and take the workload. torch.compile is no choice of dispatch."""
    found = []
    for item in registry.implementations(operator.name):
        asked = (not options.implementations or item.name in options.implementations) and (not options.backends or item.backend in options.backends)
        if not asked or item.backend == "compile" or not isinstance(backend(item.backend).way(options.device), Native):
            continue
        if not isinstance(item.accepts(workload.axes, dtype, operator.scalar_values(workload.scalars)), Rejected):
            found.append(item)
    return found


def _tune_workload(job: _Job, write: bool) -> Tuned:
    champions: list[Champion] = []
    ratios: dict[str, float | None] = {}
    try:
        for implementation in candidates(job.registry, job.operator, job.workload, job.dtype, job.options):
            champion, over_default = _search(job, implementation)
            if champion is not None:
                champions.append(champion)
                ratios[implementation.name] = over_default
        _previous(job, champions)
        return _final(job, champions, ratios, write)
    finally:
        for champion in champions:
            champion.worker.close()


def _search(job: _Job, implementation: Implementation) -> tuple[Champion | None, float | None]:
    """The fastest point of one implementation that passed, and its time over the default's."""
    options, axes = job.options, job.workload.axes
    scalars = job.operator.scalar_values(job.workload.scalars)
    points, _ = valid_points(implementation, axes, job.dtype, DTYPES[job.dtype].itemsize, scalars)
    search = Search(points, options.trials, random.Random(f"{options.seed} {implementation.name} {job.workload.name} {job.dtype}"))
    codes = Codes(job.registry, implementation, axes, job.dtype, scalars, options.device, detect(options.device).target)
    seen: dict[str, Config] = {}
    best: Champion | None = None
    over_default: float | None = None
    try:
        _compile_ahead(job, codes, search.planned() if len(points) > 1 else [])
        while (config := search.next(best.config if best else None)) is not None:
            if best is not None and not search.planned():
                _compile_ahead(job, codes, [config, *search.near(best.config)[: search.trials - search.given]])
            code = codes.of(config) if len(points) > 1 else None
            ratio: float | None = None
            challenger: Champion | None = None
            if code is not None and code in seen:
                outcome, reason = SAME_CODE, f"the compiler makes what it made of [{seen[code]}]"
                record = job.record(implementation, config, Unsupported(reason=f"not measured again: {reason}"), None)
            else:
                if code is not None:
                    seen[code] = config
                challenger, verdict, ratio = _attempt(job, implementation, config, best)
                outcome, reason = (TIMED, "") if challenger else (FAILED, explained(verdict))
                record = job.record(implementation, config, verdict, challenger.timing if challenger else None)
            job.counts[outcome] += 1
            job.listener(
                Trial(
                    operator=job.operator.name,
                    implementation=implementation.name,
                    workload=job.workload.name,
                    dtype=job.dtype,
                    config=config,
                    outcome=outcome,
                    reason=reason,
                    ratio=ratio,
                    record=record,
                    number=search.given,
                    total=search.trials,
                )
            )
            if challenger is not None:
                if config == implementation.default:
                    over_default = 1.0
                if best is None or (ratio is not None and ratio < 1):
                    # each step was measured in turns with the one before: their product leads back to the default
                    over_default = over_default * ratio if over_default is not None and best is not None and ratio is not None else over_default
                    best, challenger = challenger, best
                if challenger is not None:
                    challenger.worker.close()
    except BaseException:
        if best is not None:
            best.worker.close()
        raise
    finally:
        codes.close()
    return best, over_default


def _compile_ahead(job: _Job, codes: Codes, configs: Sequence[Config]) -> None:
    codes.ahead(configs)
    if job.options.device == "cpu":
        # a compiler at work takes the cores that kernels are timed on
        for config in configs:
            codes.of(config)


def _attempt(job: _Job, implementation: Implementation, config: Config, best: Champion | None) -> tuple[Champion | None, Verdict, float | None]:
    """Verify a point, bind it to the workload, time it in turns with the best: the Champion it might be, the verdict, the ratio of times."""
    verdict = verify(job.bench, implementation, job.dtype, config=config, effort=POINT)
    if not isinstance(verdict, Pass):
        return None, verdict, None
    bound_point = _bound(job, implementation, config, verdict)
    if not isinstance(bound_point, Champion):
        return None, bound_point, None
    contestants = [bound_point.contestant(), *([best.contestant()] if best else [])]
    timings = job.measure(contestants)
    mine, other = timings[0], timings[1] if best else None
    if isinstance(mine, str):
        bound_point.worker.close()
        return None, Broken(case=job.prepared.case, dtype=job.dtype, reason=f"not timed: {mine}", isolation=job.host.isolation), None
    bound_point.timing = mine
    ratio = mine.median_s / other.median_s if isinstance(other, Timing) else 1.0
    if best is not None and ratio < 1:
        # of many points the one that was lucky looks best: who seems faster is measured once more, and that counts
        again, other = job.measure([bound_point.contestant(), best.contestant()], SECOND_LOOK)
        if isinstance(again, Timing) and isinstance(other, Timing):
            bound_point.timing, ratio = again, again.median_s / other.median_s
    return bound_point, bound_point.proof, ratio


def _bound(job: _Job, implementation: Implementation, config: Config, proof: Pass) -> Champion | Verdict:
    """The point in a process of its own, right on the workload itself; or the verdict that says why not."""
    case, isolation = job.prepared.case, job.host.isolation
    worker: Worker | None = None
    verdict: Verdict
    try:
        worker = job.host.worker(backend(implementation.backend).environment(job.options.device))
        found = run_once(job.bench, worker, implementation, job.prepared, config)
        if isinstance(found, str):
            verdict = Unsupported(reason=found)
        elif isinstance(found[1], Checked):
            if job.loop is None:
                job.loop = look_at_clocks(worker, job.options.device)
            right = replace(proof, checked=(*proof.checked, found[1]))
            return Champion(implementation=implementation, config=config, proof=right, worker=worker, launch=found[0])
        else:
            verdict = found[1]
    except WorkerDied as error:
        verdict = Crash(case=case, dtype=job.dtype, status=error.status, stderr=error.stderr, isolation=isolation)
    except WorkerLate as error:
        verdict = Timeout(case=case, dtype=job.dtype, limit_s=error.limit_s, isolation=isolation)
    except EnvironmentLacks as error:
        verdict = Unsupported(reason=str(error))
    if worker is not None:
        worker.close()
    return verdict


def _previous(job: _Job, champions: list[Champion]) -> None:
    """What had been chosen before takes part in the final, where it is not among the champions: it is replaced only if it is beaten."""
    old = before(choices_path(job.operator, detect(job.options.device).name), job.operator.format_of_factors(job.dtype, job.workload.scalars), job.workload.axes)
    if old is None or any(item.implementation.name == old.implementation and item.config.as_dict() == old.config for item in champions):
        return
    known = {item.name: item for item in candidates(job.registry, job.operator, job.workload, job.dtype, Options(device=job.options.device))}
    implementation = known.get(old.implementation)
    if implementation is None:
        return
    challenger, _, _ = _attempt(job, implementation, Config(tuple(old.config.items())), None)
    if challenger is not None:
        champions.append(challenger)


def _final(job: _Job, champions: list[Champion], ratios: dict[str, float | None], write: bool) -> Tuned:
    """The best of each implementation in turns; the fastest that passes every case, and is right on new inputs after it was timed, is kept."""
    timings = job.measure([champion.contestant() for champion in champions], FINAL_SAMPLES) if champions else []
    standing = sorted(
        ((timing.median_s, place) for place, timing in enumerate(timings) if isinstance(timing, Timing)),
        key=lambda item: item[0],
    )
    counts = job.counts
    path = choices_path(job.operator, detect(job.options.device).name)
    for median_s, place in standing:
        champion, timing = champions[place], timings[place]
        verdict = verify(job.bench, champion.implementation, job.dtype, config=champion.config, effort=BRIEF)
        if isinstance(verdict, Pass):
            verdict = _still_right(job, champion) or replace(verdict, checked=(*verdict.checked, champion.proof.checked[-1]))
        record = job.record(champion.implementation, champion.config, verdict, timing if isinstance(verdict, Pass) and isinstance(timing, Timing) else None)
        if record.timing is None:
            continue
        others = tuple((champions[other].implementation.name, champions[other].config, seconds / median_s) for seconds, other in standing if other != place)
        over_default = ratios.get(champion.implementation.name)
        if write:
            form = job.operator.format_of_factors(job.dtype, job.workload.scalars)
            keep(path, record, over_default=over_default, trials=sum(counts.values()), failed=counts[FAILED], factors=form)
        return Tuned(
            operator=job.operator.name,
            workload=job.workload.name,
            dtype=job.dtype,
            record=record,
            over_default=over_default,
            others=others,
            timed=counts[TIMED],
            same_code=counts[SAME_CODE],
            failed=counts[FAILED],
            kept=write,
            why=f"kept in {path}" if write else "not kept: a dry run",
        )
    why = "no point passed" if sum(counts.values()) else "no implementation that was asked for takes this workload here"
    return Tuned(
        operator=job.operator.name,
        workload=job.workload.name,
        dtype=job.dtype,
        record=None,
        over_default=None,
        others=(),
        timed=counts[TIMED],
        same_code=counts[SAME_CODE],
        failed=counts[FAILED],
        kept=False,
        why=f"{why}; see: opforge verify {job.operator.name}",
    )


def _still_right(job: _Job, champion: Champion) -> Verdict | None:
    """What the timed launch is found to do on inputs it has not seen: None when it is right."""
    again = job.bench.refresh(job.prepared)
    again.reset()
    answer = asker(champion.worker)({"do": "run", "launch": champion.launch})
    if answer["status"] != "ok":
        return Broken(case=again.case, dtype=job.dtype, reason=f"after timing: {answer.get('reason')}", isolation=job.host.isolation)
    found = judge(again, job.operator, job.host.isolation)
    return None if isinstance(found, Checked) else found


def explained(verdict: Verdict) -> str:
    """Why a point has no time, in a line."""
    words = next((text for name in ("reason", "cause", "stderr") if (text := getattr(verdict, name, ""))), "")
    lines = [line.strip() for line in str(words).splitlines() if line.strip()]
    if not lines:
        return type(verdict).__name__
    # a compiler says what is wrong somewhere in the middle, a crash at the end
    told = next((line for line in lines if "error" in line.lower()), lines[-1 if isinstance(verdict, Crash) else 0])
    return f"{type(verdict).__name__}: {told}"
