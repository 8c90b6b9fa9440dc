"""One workload and dtype being tuned: what an attempt at a point costs and comes to, and the record of it."""

from __future__ import annotations

import datetime
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from opforge.backends import backend
from opforge.backends.shared_code import source_sha256
from opforge.core import units
from opforge.core.errors import EnvironmentLacks
from opforge.core.implementation import Config, Implementation
from opforge.core.operator import Operator, Workload
from opforge.core.record import Environment, Record
from opforge.core.timing import Timing
from opforge.core.verdict import Broken, Checked, Crash, Pass, Timeout, Unsupported, Verdict
from opforge.machine import detect
from opforge.registry import Registry
from opforge.roofline import bound, suspect
from opforge.runner import Host, Worker, WorkerDied, WorkerLate
from opforge.timing import Contestant, measure
from opforge.timing.asking import Loop, asker, look_at_clocks
from opforge.tuning.codes import Code
from opforge.tuning.compilers import Compilers
from opforge.tuning.trial import FAILED, SAME_CODE, SLOWER, TIMED, Options, Trial
from opforge.verdicts import QUICK, Bench, Prepared, run_once, verify

POINT = replace(QUICK, hidden=0, repeats=0, seconds=0.0, least_hidden=0, shrink_s=0.0)
"""What a point is verified with: a selection of the operator's cases. The winner gets BRIEF."""

SECOND_LOOK = 2.0
"""A point that seems faster than the best is measured once more, so many times as long."""

HOPELESS = 1.1
"""A point that takes so many times as long as the best is not verified any further, and not timed."""


@dataclass(kw_only=True)
class Champion:
    """A point that passed, bound to the workload in a process that lives on; and its time, once it was measured."""

    implementation: Implementation
    config: Config
    proof: Pass
    worker: Worker
    launch: int
    limit_s: float
    timing: Timing | None = None

    def contestant(self) -> Contestant:
        """To be measured once more."""
        return Contestant(name=f"{self.implementation.name} [{self.config}]", proof=self.proof, ask=asker(self.worker, self.limit_s), launch=self.launch)


@dataclass(kw_only=True)
class Job:
    """One workload and dtype being tuned.

    stop            whether whoever waits wants no more points
    began, until    by time.monotonic(): when the tuning began, and when this workload's share of its time ends
    """

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
    listener: Callable[[Trial], None]
    stop: Callable[[], bool]
    compilers: Compilers
    began: float
    until: float
    timer: str = ""
    loop: Loop | None = None
    counts: dict[str, int] = field(default_factory=lambda: {TIMED: 0, SLOWER: 0, SAME_CODE: 0, FAILED: 0})

    def record(self, implementation: Implementation, config: Config, verdict: Verdict, timing: Timing | None, code: Code | None = None) -> Record:
        """A Record, put into the store."""
        if timing is not None and code is not None and code.stack_bytes:
            timing = replace(timing, conditions=(*timing.conditions, f"a thread keeps {code.stack_bytes} bytes outside of registers: they spill, or an array is indexed"))
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

    def tell(self, made: Record, outcome: str, reason: str, ratio: float | None, code: Code | None, place: tuple[int, int]) -> None:
        """Count what a point came to, and say it. place: its number, and of how many."""
        self.counts[outcome] += 1
        self.listener(
            Trial(
                operator=self.operator.name,
                implementation=made.implementation,
                workload=self.workload.name,
                dtype=self.dtype,
                config=made.config,
                outcome=outcome,
                reason=reason,
                ratio=ratio,
                record=made,
                stack_bytes=code.stack_bytes if code else None,
                number=place[0],
                total=place[1],
                elapsed_s=time.monotonic() - self.began,
            )
        )


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What became of a point: the Champion it might be, and its time over that of the best; or why it is none."""

    champion: Champion | None
    verdict: Verdict
    ratio: float | None
    outcome: str
    reason: str


def attempt(job: Job, implementation: Implementation, config: Config, best: Champion | None) -> Attempt:
    """Bind a point to the workload and see that it is right there, look how fast it is beside the best, and unless it is hopeless verify it
    and time it in turns with the best."""
    point = _bound(job, implementation, config)
    if not isinstance(point, Champion):
        return _failed(point)
    try:
        ratio = 1.0
        if best is not None:
            mine, other = job.measure([point.contestant(), best.contestant()])
            if isinstance(mine, str):
                return _untimed(job, point, mine)
            ratio = mine.median_s / _seconds(other, best)
            # a busy machine lengthens many samples of one side by chance, and seldom all of them
            if ratio > HOPELESS and not (isinstance(other, Timing) and min(mine.samples_s) <= HOPELESS * min(other.samples_s)):
                point.worker.close()
                reason = f"right on this workload, where it takes {units.ratio(ratio)} as long as the best point until then"
                return Attempt(champion=None, verdict=Unsupported(reason=f"not verified any further: {reason}"), ratio=ratio, outcome=SLOWER, reason=reason)
            point.timing = mine
        verdict = verify(job.bench, implementation, job.dtype, config=config, effort=POINT)
        if not isinstance(verdict, Pass):
            point.worker.close()
            return _failed(verdict)
        point.proof = replace(verdict, checked=(*verdict.checked, *point.proof.checked))
        if best is None or ratio < 1:
            # of many points the one that was lucky looks best: who seems faster is measured once more, and that counts
            mine, *others = job.measure([point.contestant(), *([best.contestant()] if best else [])], SECOND_LOOK if best else 1.0)
            if isinstance(mine, str):
                return _untimed(job, point, mine)
            point.timing = mine
            ratio = next((mine.median_s / _seconds(other, best) for other in others), 1.0)
        return Attempt(champion=point, verdict=point.proof, ratio=ratio, outcome=TIMED, reason="")
    except BaseException:
        point.worker.close()
        raise


def _seconds(now: Timing | str, best: Champion | None) -> float:
    """The time of the best point beside which another was timed; what it took before, where its process has ended meanwhile."""
    if isinstance(now, Timing):
        return now.median_s
    assert best is not None and best.timing is not None
    return best.timing.median_s


def _failed(verdict: Verdict) -> Attempt:
    return Attempt(champion=None, verdict=verdict, ratio=None, outcome=FAILED, reason=explained(verdict))


def _untimed(job: Job, point: Champion, reason: str) -> Attempt:
    point.worker.close()
    return _failed(Broken(case=job.prepared.case, dtype=job.dtype, reason=f"not timed: {reason}", isolation=job.host.isolation))


def _bound(job: Job, implementation: Implementation, config: Config) -> Champion | Verdict:
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
            proof = Pass(checked=(found[1],), not_taken=(), isolation=isolation)
            return Champion(implementation=implementation, config=config, proof=proof, worker=worker, launch=found[0], limit_s=job.options.hang_s)
        else:
            verdict = found[1]
    except WorkerDied as error:
        verdict = Crash(case=case, dtype=job.dtype, status=error.status, stderr=error.stderr, isolation=isolation)
    except WorkerLate as error:
        verdict = Timeout(case=case, dtype=job.dtype, limit_s=error.limit_s, isolation=isolation)
    except EnvironmentLacks as error:
        verdict = Unsupported(reason=str(error))
    except BaseException:
        if worker is not None:
            worker.close()
        raise
    if worker is not None:
        worker.close()
    return verdict


def explained(verdict: Verdict) -> str:
    """Why a point has no time, in a line."""
    if isinstance(verdict, Timeout):
        return f"{type(verdict).__name__}: no answer within {verdict.limit_s:g} s"
    words = next((text for name in ("reason", "cause", "stderr") if (text := getattr(verdict, name, ""))), "")
    lines = [line.strip() for line in str(words).splitlines() if line.strip()]
    if not lines:
        return type(verdict).__name__
    # a compiler says what is wrong somewhere in the middle, a crash at the end
    told = next((line for line in lines if "error" in line.lower()), lines[-1 if isinstance(verdict, Crash) else 0])
    return f"{type(verdict).__name__}: {told}"
