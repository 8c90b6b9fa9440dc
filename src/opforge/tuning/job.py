"""One workload and dtype being tuned: what an attempt at a point costs and comes to, and the record of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from opforge.core.definition.implementation import Config, Implementation
from opforge.core.definition.operator import Operator, Workload
from opforge.core.evidence.record import Environment, Record
from opforge.core.evidence.timing import Timing, Untimed
from opforge.core.evidence.verdict import Broken, Pass, Proof, Unsupported, Verdict
from opforge.core.language import units
from opforge.registry import Registry
from opforge.runner.wire.messages import Spare
from opforge.runner.worker.device_clocks import NO_GRAPH
from opforge.timing import Candidate
from opforge.trial import NotReady, Point, Ready, Setting, bind, check, compiled_now, leave, recorded
from opforge.tuning.codes import CompiledCode
from opforge.tuning.compile_queue import Compilers
from opforge.tuning.device_lock import alone_on
from opforge.tuning.outcomes import FAILED, SAME_CODE, SLOWER, TIMED, Trial, TuneOptions, explained
from opforge.tuning.room import NoRoom, patiently, shortage
from opforge.tuning.strategies import Objectives
from opforge.tuning.weighing import costs, over
from opforge.tuning.workers import SearchWorkers
from opforge.verify import QUICK
from opforge.verify.judging.threads import give_back

POINT = replace(QUICK, hidden=0, repeats=0, seconds=0.0, least_hidden=0, shrink_s=0.0)
"""What a point is verified with before it takes the best one's place: a selection of the operator's cases. The winner
gets BRIEF.
"""

LARGE = 1 << 28
"""Bytes of a workload that is judged by one search at a time."""

JITS = ("triton", "tilelang")
"""Backends whose compilers take a second for each case: ten times what all cases of others take."""

SECOND_LOOK = 2.0
"""A point that seems faster than the incumbent is measured once more, so many times as long."""

HOPELESS = 1.1
"""A point that takes so many times as long as the incumbent is not verified any further, and not timed."""


@dataclass(kw_only=True)
class Passed:
    """A point that passed, or a baseline that is known to be inaccurate, bound to the workload in a process that lives
    on; and its time, once it was measured.

    failed   in the final it turned out to be none
    parked   its process has been given to others: it is bound again where it is wanted
    """

    ready: Ready
    proof: Proof
    timing: Timing | None = None
    failed: bool = False
    parked: bool = False

    @property
    def implementation(self) -> Implementation:
        """Whose point it is."""
        return self.ready.point.implementation

    @property
    def config(self) -> Config:
        """Which point it is."""
        return self.ready.point.config or self.implementation.default

    @property
    def seconds(self) -> float:
        """Its median; infinite where it was not measured."""
        return self.timing.median_s if self.timing is not None else float("inf")

    def candidate(self) -> Candidate:
        """To be measured once more."""
        (candidate,) = self.ready.candidates()
        return candidate


@dataclass(kw_only=True)
class Proofs:
    """What has passed the operator's cases in one dtype, by implementation and config: they are the same at every
    workload, and asked once.

    quick   a selection of them
    full    all of them, with hidden ones
    """

    quick: dict[tuple[str, Config], Pass] = field(default_factory=dict)
    full: dict[tuple[str, Config], Pass] = field(default_factory=dict)


@dataclass(kw_only=True)
class Job:
    """One workload and dtype being tuned.

    stop            whether whoever waits wants no more points
    tried           what each timed point costs: implementation, config, objectives
    finalists       the fastest point of each implementation until now
    untried         of whom the default, or the former choice, got no answer, and why: without it nothing is chosen
    began           by time.monotonic(): when the tuning began
    search_until, until   when the last point of this workload is begun, and when its share of the time ends
    defaults_until  until when a default that is with its compiler is waited for, at the cost of other workloads
    careful         whether each point is verified, also one that stays behind the incumbent
    """

    registry: Registry
    operator: Operator
    options: TuneOptions
    setting: Setting
    environment: Environment
    run: str
    workload: Workload
    dtype: str
    add: Callable[[Record], None]
    listener: Callable[[Trial], None]
    stop: Callable[[], bool]
    compilers: Compilers
    began: float
    until: float
    search_until: float = float("inf")
    defaults_until: float = float("inf")
    proofs: Proofs = field(default_factory=Proofs)
    careful: bool = False
    timer: str = ""
    untried: dict[str, str] = field(default_factory=dict)
    finalists: list[Passed] = field(default_factory=list)
    tried: list[tuple[str, Config, Objectives]] = field(default_factory=list)
    resumed: int = 0
    refused: int = 0
    counts: dict[str, int] = field(default_factory=lambda: {TIMED: 0, SLOWER: 0, SAME_CODE: 0, FAILED: 0})

    def record(
        self,
        implementation: Implementation,
        config: Config,
        verdict: Verdict,
        timing: Timing | None,
        code: CompiledCode | None = None,
        *,
        trial: bool = True,
    ) -> Record:
        """A Record, put into the store. `trial`: of a point that was tried, which is nobody's evidence but the
        search's.
        """
        record = self.recorded(implementation, config, verdict, timing, code, trial=trial)
        self.add(record)
        return record

    def recorded(
        self,
        implementation: Implementation,
        config: Config,
        verdict: Verdict,
        timing: Timing | None,
        code: CompiledCode | None = None,
        *,
        trial: bool = True,
    ) -> Record:
        """The same, not yet in the store."""
        if timing is not None and code is not None and code.stack_bytes:
            timing = replace(
                timing,
                conditions=(
                    *timing.conditions,
                    f"a thread keeps {code.stack_bytes} bytes outside of registers: they spill, or an array is indexed",
                ),
            )
        return recorded(
            self.operator,
            implementation,
            self.workload,
            self.dtype,
            verdict,
            timing,
            device=self.options.device,
            environment=self.environment,
            run=self.run,
            config=config,
            trial=trial,
        )

    def costs(self, timing: Timing, verdict: Verdict) -> Objectives:
        """What a timed point costs, by objective (tuning.weighing)."""
        scalars = self.operator.scalar_values(self.workload.scalars)
        return costs(timing, verdict, self.operator.cost(self.workload.axes, self.dtype, scalars).bytes)

    @property
    def large(self) -> bool:
        """Whether judging takes several times so much of a device's memory that one search at a time does it."""
        return self.setting.prepared.place.type != "cpu" and self.setting.prepared.arena.size >= LARGE

    def room(self) -> contextlib.AbstractContextManager[None]:
        """Held while a large workload is judged."""
        return alone_on(self.options.device, "-room") if self.large else contextlib.nullcontext()

    def make_room(self) -> None:
        """Give back what this search holds of the device and can do without, graphs of points that live on included."""
        if isinstance(self.setting.pool, SearchWorkers):
            self.setting.pool.shed()
        for candidate in [item.candidate() for item in self.finalists if not item.parked]:
            candidate.ask(Spare(launch=candidate.launch))
        if self.setting.prepared.place.type != "cpu":
            give_back()

    def measure(self, points: Sequence[Passed], factor: float = 1.0) -> list[tuple[Candidate, Timing | Untimed]]:
        """Timings, interleaved, in the order given; the clock that the first kernel got is everybody's. Where calls of
        one can be put into no CUDA graph all of these are timed by events: a rival without a time would be none.
        """
        plan = self.options.plan
        plan = replace(plan, samples=round(plan.samples * factor), budget_s=plan.budget_s * factor)
        candidates = [point.candidate() for point in points]
        with alone_on(self.options.device):
            timings = self.setting.timed(candidates, plan, self.timer)
            if any(isinstance(one, Untimed) and one.reason.startswith(NO_GRAPH) for one in timings):
                candidates = [point.candidate() for point in points]
                timings = self.setting.timed(candidates, plan, "cuda_event")
            elif not self.timer and timings and isinstance(timings[0], Timing):
                self.timer = timings[0].timer
        return list(zip(candidates, timings, strict=True))

    def tell(
        self,
        record: Record,
        outcome: str,
        reason: str,
        ratio: float | None,
        code: CompiledCode | None,
        place: tuple[int, int],
    ) -> None:
        """Count what a point came to, and say it. place: its number, and of how many."""
        self.counts[outcome] += 1
        self.listener(
            Trial(
                operator=self.operator.name,
                implementation=record.implementation,
                workload=self.workload.name,
                dtype=self.dtype,
                config=record.config,
                outcome=outcome,
                reason=reason,
                ratio=ratio,
                record=record,
                stack_bytes=code.stack_bytes if code else None,
                number=place[0],
                total=place[1],
                elapsed_s=time.monotonic() - self.began,
            )
        )


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What became of a point: what passed, and its time (by weights: its cost) over the incumbent's; or why it did
    not.
    """

    passed: Passed | None
    verdict: Verdict
    ratio: float | None
    outcome: str
    reason: str


def attempt(job: Job, implementation: Implementation, config: Config, incumbent: Passed | None) -> Attempt:
    """Bind a point to the workload and see that it is right there, and how fast it is beside the incumbent. One that
    would take the incumbent's place, or has none, is verified.

    Raises NoRoom where the device, or the machine, has no room for it until nobody waits any longer.
    """

    struck: list[bool] = []

    def again_where_struck() -> Attempt:
        # a signal from outside says nothing of the point
        struck.clear()
        tried = once()
        return once() if tried.passed is None and any(struck) else tried

    def once() -> Attempt:
        if job.setting.pool.kept:
            compiled_now(implementation, config, job.options.device)
            # one worker serves both, where there is nothing yet that it would have to be held against
            if incumbent is None and not _late(job, implementation):
                verdict = _proof(job, implementation, config)
                if not isinstance(verdict, Pass):
                    return _failed(verdict)
        with job.room():
            (ready,) = bind(job.setting, [Point(implementation=implementation, config=config)])
        if job.setting.prepared.place.type != "cpu":
            give_back()
        if isinstance(ready, NotReady):
            struck.append(ready.struck)
            return _failed(ready.verdict)
        kept, whole = False, False
        try:
            outcome = _attempt(job, ready, incumbent)
            struck.append(ready.worker.struck() is not None)
            kept, whole = outcome.passed is not None, outcome.outcome != FAILED
            return outcome
        finally:
            if not kept:
                leave(job.setting, [ready], [ready] if whole else [])

    short = shortage(job.options.device)

    def lacking(tried: Attempt) -> str | None:
        return tried.reason if short(tried.verdict) else None

    def end() -> bool:
        return job.stop() or time.monotonic() >= job.until

    try:
        return patiently(again_where_struck, lacking, relief=job.make_room, end=end)
    finally:
        if job.setting.prepared.place.type != "cpu":
            # what judging takes for a moment is several times the workload, and others want it
            give_back()


def _attempt(job: Job, ready: Ready, incumbent: Passed | None) -> Attempt:
    if not isinstance(ready.proof, Pass):
        return _failed(ready.proof)
    point = Passed(ready=ready, proof=ready.proof)
    if incumbent is None:
        failure = _verified(job, point)
        if failure is not None:
            return _failed(failure)
        ((_, mine),) = job.measure([point])
        return _untimed(job, mine) if isinstance(mine, Untimed) else _timed(job, point, mine, 1.0)
    (_, mine), (_, other) = job.measure([point, incumbent])
    if isinstance(mine, Untimed):
        return _untimed(job, mine)
    ratio = mine.median_s / _seconds(other, incumbent)
    # a busy machine lengthens many samples of one side by chance, and seldom all of them
    hopeless = _hopeless(job)
    if ratio > hopeless and not (isinstance(other, Timing) and min(mine.samples_s) <= hopeless * min(other.samples_s)):
        reason = f"right on this workload, where it takes {units.ratio(ratio)} as long as the best point until then"
        return Attempt(
            passed=None,
            verdict=Unsupported(reason=f"not verified any further: {reason}"),
            ratio=ratio,
            outcome=SLOWER,
            reason=reason,
        )
    # by weights what a point costs may depend on all cases
    careful = job.careful or job.options.weights.get("error", 0.0) > 0
    if careful and (failure := _verified(job, point)) is not None:
        return _failed(failure)
    point.timing = mine
    ratio = _weighed(job, point, incumbent, ratio)
    if ratio < 1:
        # of many points the one that was lucky looks best: who seems faster is measured once more, and that counts
        (_, mine), (_, other) = job.measure([point, incumbent], SECOND_LOOK)
        if isinstance(mine, Untimed):
            return _untimed(job, mine)
        point.timing = mine
        ratio = _weighed(job, point, incumbent, mine.median_s / _seconds(other, incumbent))
    # one that stays behind is right where it was measured, and will be nobody's choice
    if ratio < 1 and (failure := _verified(job, point)) is not None:
        return _failed(failure)
    return _timed(job, point, mine, ratio)


def _late(job: Job, implementation: Implementation) -> bool:
    """Whether the operator's cases are asked in the final alone, which takes the next one where they fail: beside a
    GPU, and where there is a limit that compiling a second for each case would use up.
    """
    bounded = job.setting.pool.kept or job.options.limit_s is not None
    return implementation.backend in JITS and bounded and not job.careful


def _proof(job: Job, implementation: Implementation, config: Config) -> Verdict:
    """What a selection of the operator's cases says of a point, once for all workloads."""
    key = (implementation.name, config)
    verdict: Verdict | None = job.proofs.full.get(key) or job.proofs.quick.get(key)
    if verdict is None:
        verdict = check(job.setting.cases, implementation, job.dtype, POINT, config)
    if isinstance(verdict, Pass):
        job.proofs.quick.setdefault(key, verdict)
    return verdict


def _verified(job: Job, point: Passed) -> Verdict | None:
    """None once a point has passed a selection of the operator's cases, which its proof says then; else the failure."""
    assert isinstance(point.proof, Pass)
    if _late(job, point.implementation):
        return None
    verdict = _proof(job, point.implementation, point.config)
    if not isinstance(verdict, Pass):
        return verdict
    if len(point.proof.checked) == 1:
        point.proof = replace(verdict, checked=(*verdict.checked, *point.proof.checked))
    return None


def _timed(job: Job, point: Passed, timing: Timing, ratio: float) -> Attempt:
    point.timing = timing
    job.tried.append((point.implementation.name, point.config, job.costs(timing, point.proof)))
    return Attempt(passed=point, verdict=point.proof, ratio=ratio, outcome=TIMED, reason="")


def _hopeless(job: Job) -> float:
    """How much slower a point may be: where other objectives count too, they may make up for it."""
    weights = job.options.weights
    share = weights.get("time", 0.0) / sum(weights.values()) if weights else 1.0
    return HOPELESS / share if share else float("inf")


def _weighed(job: Job, point: Passed, incumbent: Passed | None, ratio: float) -> float:
    """What a point costs over the incumbent by the weights of this job; its time alone without any. ratio: of their
    times, interleaved.
    """
    if not job.options.weights or incumbent is None or incumbent.timing is None or point.timing is None:
        return ratio
    mine = {**job.costs(point.timing, point.proof), "time": ratio}
    return over(mine, {**job.costs(incumbent.timing, incumbent.proof), "time": 1.0}, job.options.weights)


def _seconds(now: Timing | Untimed, incumbent: Passed | None) -> float:
    """The time of the incumbent beside which another was timed; what it took before, where its process has ended
    meanwhile.
    """
    if isinstance(now, Timing):
        return now.median_s
    assert incumbent is not None and incumbent.timing is not None
    return incumbent.timing.median_s


def not_tried(error: NoRoom) -> Attempt:
    """What is said of a point that found no room, where nothing is lost by it."""
    return _failed(Unsupported(reason=str(error)))


def _failed(verdict: Verdict) -> Attempt:
    return Attempt(passed=None, verdict=verdict, ratio=None, outcome=FAILED, reason=explained(verdict))


def _untimed(job: Job, timing: Untimed) -> Attempt:
    setting = job.setting
    reason, case = f"not timed: {timing.reason}", setting.prepared.case
    return _failed(Broken(case=case, dtype=job.dtype, reason=reason, isolation=setting.isolation))
