"""Measures bound launches, interleaved. It asks for a Pass for each of them, and nothing else will do.

The launches live in workers; this process decides how many calls make a sample and how many samples are enough, and
checks each worker's clock against its own. Rounds of samples go from one launch to the next in random order, so that
drift of the machine falls on all of them alike and ratios between them hold.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

from opforge.core.evidence.timing import Moment, Round, Timing, Untimed
from opforge.core.evidence.timing_terms import OUT
from opforge.core.evidence.verdict import Proof
from opforge.runner.wire.messages import A, Failure, LaunchCost, Memory, Question, Sample, Samples, Unlike
from opforge.timing import conditions as conditions_of
from opforge.timing.energy import Meter, calls_for
from opforge.timing.own_content import on_its_own
from opforge.timing.parent_clock import FEWEST as REQUESTS, TimedRequest, seconds_per_call, understated
from opforge.timing.ramp import CONTENDED, LONGEST_RAMP, LONGEST_RAMP_S, MIDDLE_OF, ramp_of
from opforge.timing.timers import ChosenTimer, TimerTrial, choose, clocks_of, settled


class Ask(Protocol):
    """Sends a question to the worker that holds a launch, and returns its answer; the end of the worker is a Failure
    too.
    """

    def __call__(self, question: Question[A], /) -> A | Failure: ...


ROUND = 5
"""Samples in a turn. CUPTI takes all of a plan's in one: starting and ending a trace takes half a second."""
FEWEST = 5
"""Samples that a timing has at least: two that were disturbed do not move the median of five."""
DISAGREEMENT = 1.5
"""A worker cannot have spent more on its samples than the whole request took. Half as much again is left to clocks that
count in steps, where samples are short.
"""
TRIAL_SAMPLES = 7
"""Samples by which a clock is chosen: three that were disturbed do not move the median."""
LONG_S, LONG_SAMPLES = 0.02, 3
"""Of calls as long as this a clock is chosen by three: what disturbs a sample of 1 ms is little beside them. Seven by
two clocks and a hundred launches took 35 s of a product whose call takes 0.35 s (an H100).
"""
LAUNCHES, LAUNCHES_S = 20, 0.02
"""Calls by which the host's cost of one is told, and the seconds of a device's work that they may be."""
LOOK_EVERY_S = 0.1
"""How often the machine's state is read: NVML gives new values ten times a second or less often."""
TURN_S, UNTIMED = 0.04, 0.75
"""A turn by the host's clock takes so long, and so much of it is calls that are not timed. After a pause of 1 ms a
bias_add of 12 MiB takes 1.21 ms, 1.08 at the fifth call, 0.97 at the sixteenth and 0.82 from the 25th on (torch eager;
C++ alike; 2 cores, EPYC with 32 MiB of cache, 2026-11-23): caches are filled
anew, and threads find processors. A loop that goes on is what a user times."""
RAMP = 25
"""Calls that a turn begins with at least, while they fit into the untimed part of a whole one. With a small budget
turns were so short that the ramp was in the samples: 1.18 times a plain loop's time (bias_add, budget 0.2 s)."""
TURNS = 16
"""The turns that a budget has room for at least: what the parent's clock says is held against them
(timing.parent_clock).
"""
AGAIN, CONFIRMED = (3, 6), 24
"""How much longer some of the requests are that confirm a suspicion, and how many requests it takes."""
WARM_AGREEMENT = 1.1
"""Three samples in a row within 10 %, the agreement that is asked of clocks too: warm-up is over."""


class MeasurementFailed(Exception):
    """The launch could not be timed, or two clocks disagree about it."""


class CallsDiffer(MeasurementFailed):
    """Calls that are timed together do not all do the same: another clock would be told another lie."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long to measure.

    samples      how many to take at least, unless the budget ends first (never fewer than five)
    budget_s     seconds for each launch
    precision    stop once the 95 % interval of the median is this narrow, as a fraction of the median
    sample_s     the duration of one sample: shorter kernels are batched up to it, so that the clock's grain is small.
                 By the host's clock half of it to all of it, as drawn for each turn
    cache        "warm" or "cold" (cold needs a device whose cache can be flushed)
    energy_s     seconds for which each is called again, alone, while a counter of energy is read; 0.0: not asked
    """

    samples: int = 30
    budget_s: float = 1.0
    precision: float = 0.01
    sample_s: float = 1e-3
    cache: str = "warm"
    energy_s: float = 0.0


@dataclass(kw_only=True)
class Candidate:
    """One launch that takes part: its name, the proof that it is right (or a baseline that is known to be inaccurate),
    how to reach it, and on which terms (core.evidence.timing_terms) it was bound.

    inaccurate   its file says so, and it is there to be compared with
    long         its turns are longer than others' for its ramp
    spans        inputs whose rows each turn by the host's clock has in an order of its own (SampleRequest.spans)
    watch        begins to watch over memory that it shares with its rivals; what that returns says what was done to it
                 since
    """

    name: str
    proof: Proof
    ask: Ask
    launch: int
    terms: str = OUT
    inaccurate: bool = False
    samples: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    batch: int = 1
    lead: int = 1
    stretch: int = ROUND
    long: bool = False
    turns: int = 0
    timer: str = "host"
    spent_s: float = 0.0
    call_s: float = 0.0
    launch_s: float | None = None
    extra_bytes: int | None = None
    energy_j: float | None = None
    seen_by: dict[str, float] = field(default_factory=dict)
    failure: str | None = None
    broken: Any = None
    rounds: list[Round] = field(default_factory=list)
    asked: list[TimedRequest] = field(default_factory=list)
    spans: tuple[tuple[int, int, int], ...] = ()
    watch: Callable[[], Callable[[], str | None]] | None = None
    shapes: random.Random = field(default_factory=random.SystemRandom)

    def turn(self, count: int, cache: str, clock: Callable[[], float]) -> list[float]:
        """`count` samples after others have had the machine. By the host's clock in one request, none of which is as
        long as another: calls that are not timed, then the samples, fewer where a call takes long. How many calls go
        before is drawn too: beside a process that shares a core, which of the two has it changes every few
        milliseconds, and samples that always come as long after a beginning are always of the same phase. A sample is
        at most as long as was planned, or one call, and then how many there are is drawn: of longer ones more are
        interrupted, and their median is too high (docs/timing.md#how-opforge-is-measured-itself). Raises
        MeasurementFailed.
        """
        if self.timer != "host":
            return self.take(count, cache, clock, lead=1)
        batch, count = self.shapes.randint((self.batch + 1) // 2, self.batch), min(count, self.stretch)
        if self.batch == 1:
            count = self.shapes.randint((count + 1) // 2, max(2, count + count // 2))
        lead = self.shapes.randint(self.lead, self.lead + self.lead // 2)
        self.turns += 1
        question = Sample(launch=self.launch, timer=self.timer, cache=cache, batch=batch, count=count, lead=lead)
        answer = self.request(on_its_own(question, self.spans, self.shapes), clock)
        if answer.seen is not None:
            self.rounds.append(Round(samples=count, **vars(answer.seen)))
            self.asked.append(
                TimedRequest(
                    calls=batch * count,
                    claimed_s=sum(answer.samples) * batch + answer.lead_s,
                    wall_s=answer.seen.wall_s,
                )
            )
        return list(answer.samples)

    def plan_turns(self, call_s: float, plan: Plan, ramp: int = 0) -> None:
        """What a turn by the host's clock is, of calls that take so long and whose ramp is so many of them."""
        self.call_s = call_s
        turn_s = min(TURN_S, plan.budget_s / TURNS)
        timed_s = (1 - UNTIMED) * turn_s
        lead_s = max(UNTIMED * turn_s, min(UNTIMED * TURN_S, RAMP * call_s))
        self.lead, ramp = math.floor(lead_s / call_s), min(ramp, math.floor(LONGEST_RAMP_S / call_s))
        self.long = ramp > self.lead
        if self.long:
            self.lead = ramp
            timed_s = max(timed_s, (1 - UNTIMED) / UNTIMED * ramp * call_s)
        self.stretch = max(1, min(ROUND, math.floor(timed_s / max(call_s, plan.sample_s))))

    def request(self, question: Sample, clock: Callable[[], float]) -> Samples:
        """The answer to a request for samples, which is one that can be. Raises MeasurementFailed."""
        done = self.watch() if self.watch is not None else None
        started = clock()
        answer = self.ask(question)
        took = clock() - started
        harm = done() if done is not None else None
        if harm is not None:
            raise MeasurementFailed(f"while it was timed, {harm}")
        if isinstance(answer, Unlike):
            raise CallsDiffer(answer.reason)
        if isinstance(answer, Failure):
            raise MeasurementFailed(answer.reason)
        if len(answer.samples) != question.count or not all(sample > 0 for sample in answer.samples):
            raise MeasurementFailed("the worker's samples are not what was asked for")
        batch = question.batch if question.timer == "host" else answer.batch
        claimed_s = sum(answer.samples) * batch
        if claimed_s > took * DISAGREEMENT:
            raise MeasurementFailed(
                f"the worker reports {claimed_s:.3g} s of work inside {took:.3g} s of this process's clock"
            )
        self.spent_s += took
        return answer

    def take(
        self, count: int, cache: str, clock: Callable[[], float], *, timer: str | None = None, lead: int = 0
    ) -> list[float]:
        """`count` samples, after `lead` calls that are not timed. Raises MeasurementFailed."""
        question = Sample(
            launch=self.launch, timer=timer or self.timer, cache=cache, batch=self.batch, count=count, lead=lead
        )
        return list(self.request(question, clock).samples)


def measure(
    candidates: Sequence[Candidate],
    plan: Plan,
    *,
    timer: str = "",
    overhead_s: float,
    resolution_s: float = 0.0,
    conditions: tuple[str, ...] = (),
    device: str = "cpu",
    clock: Callable[[], float] = time.perf_counter,
    order: random.Random | None = None,
    probe: Callable[[], Moment] | None = None,
    meter: Meter | None = None,
) -> dict[str, Timing | Untimed]:
    """The Timing of each candidate by name; Untimed where it has none.

    timer        the clock to use; "" tries those of `device` on each kernel and lets the trials decide
    overhead_s   what the sampling loop costs per call; stated in the Timing, never subtracted
    probe        reads the machine's state between rounds
    meter        counts energy; None: it is not measured

    Warm-up of each ends when three rounds agree within 10 % or a quarter of its budget is spent; only then are samples
    kept, all of them, in order. Each goes on until its median is known to `plan.precision` or its budget is spent.
    """
    shuffle = order or random.Random()
    moments: list[Moment] = [probe()] if probe else []
    for candidate in candidates:
        try:
            get_ready(candidate, plan, timer, device, clock)
            candidate.extra_bytes = _memory(candidate)
        except MeasurementFailed as error:
            candidate.failure = str(error)
    active = [candidate for candidate in candidates if candidate.failure is None]
    if len({candidate.timer for candidate in active}) > 1:
        for candidate in active:
            candidate.notes.append("not every implementation here was timed by the same clock; compare with care")
    last_look = clock()
    while active:
        shuffle.shuffle(active)
        for candidate in active:
            try:
                candidate.samples += candidate.turn(
                    max(ROUND, plan.samples) if candidate.timer == "cupti" else ROUND, plan.cache, clock
                )
            except MeasurementFailed as error:
                candidate.failure = str(error)
        if probe and clock() - last_look >= LOOK_EVERY_S:
            moments.append(probe())
            last_look = clock()
        active = [candidate for candidate in active if candidate.failure is None and not _enough(candidate, plan)]
    for candidate in candidates:
        if candidate.failure is None and candidate.timer == "host":
            candidate.failure = believed(candidate, plan.cache, clock)
        if candidate.failure is None and meter is not None and plan.energy_s > 0:
            candidate.energy_j = _energy(candidate, plan.energy_s, meter, clock)
    if probe:
        moments.append(probe())
    told = (*conditions, *conditions_of.words(moments))
    return {
        candidate.name: Untimed(reason=candidate.failure)
        if candidate.failure is not None
        else _timing(candidate, plan, overhead_s, resolution_s, told, tuple(moments))
        for candidate in candidates
    }


def believed(candidate: Candidate, cache: str, clock: Callable[[], float]) -> str | None:
    """Why the samples of a candidate are not believed, by the parent's clock; None when they are. What the requests of
    the measurement itself say is
    asked again, with requests that differ more, before somebody is accused."""
    suspicion = understated(candidate.samples, candidate.asked)
    few = candidate.batch
    for times in AGAIN if suspicion else ():
        asked = candidate.asked = []
        try:
            for at in range(CONFIRMED):
                candidate.batch = few if at % 2 else times * few
                candidate.turn(ROUND, cache, clock)
        except MeasurementFailed as error:
            return str(error)
        finally:
            candidate.batch = few
        suspicion = understated(candidate.samples, asked)
        if not suspicion:
            return None
    return suspicion


def get_ready(candidate: Candidate, plan: Plan, timer: str, device: str, clock: Callable[[], float]) -> None:
    """Warm up, choose the clock and the batch; `timer` "" tries those of `device`. Raises MeasurementFailed."""
    possible = (timer,) if timer else clocks_of(device)
    # what every kernel can be warmed up by: a graph may not be captured, and a trace takes seconds to begin
    candidate.timer = "cuda_event" if "cuda_event" in possible else possible[-1]
    _warm_up(candidate, plan, clock)
    if len(possible) > 1:
        choice = _try_clocks(candidate, plan, possible, clock)
        candidate.timer = choice.timer
        candidate.notes.append(choice.why)
    if candidate.timer != "host":
        batch = max(1, min(LAUNCHES, math.floor(LAUNCHES_S / candidate.call_s)))
        count = ROUND if candidate.call_s < LONG_S else 1
        answer = candidate.ask(LaunchCost(launch=candidate.launch, batch=batch, count=count))
        candidate.launch_s = None if isinstance(answer, Failure) else median(answer.samples)
    candidate.spent_s = 0.0


def _memory(candidate: Candidate) -> int | None:
    done = candidate.watch() if candidate.watch is not None else None
    answer = candidate.ask(Memory(launch=candidate.launch))
    harm = done() if done is not None else None
    if harm is not None:
        raise MeasurementFailed(f"while its memory was looked at, {harm}")
    return None if isinstance(answer, Failure) else answer.bytes


def _energy(candidate: Candidate, wanted_s: float, meter: Meter, clock: Callable[[], float]) -> float | None:
    """Joules of one call, of many in a row; None where the counter did not move, or the calls were refused."""
    timer = "host" if candidate.timer == "host" else "cuda_event"
    batch, count = calls_for(median(candidate.samples), wanted_s)
    question = Sample(launch=candidate.launch, timer=timer, cache="warm", batch=batch, count=count, lead=1)
    before = meter.joules()
    try:
        answer = candidate.request(question, clock)
    except MeasurementFailed as error:
        candidate.notes.append(f"its energy was not measured: {error}")
        return None
    after = meter.joules()
    if before is None or after is None or not after > before:
        return None
    calls = question.count * (question.batch if timer == "host" else answer.batch) + question.lead
    candidate.notes.append(f"energy by {meter.name}, of {calls} calls in a row with a warm cache")
    return (after - before) / calls


def _warm_up(candidate: Candidate, plan: Plan, clock: Callable[[], float]) -> None:
    """Single calls until they are stable, then batches until those are: caches, thread pools and clocks take their
    time. How much of it is seen between the two, by calls in a row, where turns are timed by the host's clock.
    """
    call_s, ramp = _stable(candidate, plan, clock), 0
    count = min(LONGEST_RAMP, math.floor(min(LONGEST_RAMP_S, plan.budget_s / 4) / call_s))
    if candidate.timer == "host" and count >= 2 * MIDDLE_OF:
        in_row = candidate.take(count, plan.cache, clock)
        call_s, ramp = min(in_row), CONTENDED * ramp_of(in_row)
    candidate.batch = max(1, math.ceil(plan.sample_s / call_s))
    call_s = min(call_s, _stable(candidate, plan, clock))
    candidate.batch = max(1, math.ceil(plan.sample_s / call_s))
    candidate.plan_turns(call_s, plan, ramp)


def _stable(candidate: Candidate, plan: Plan, clock: Callable[[], float]) -> float:
    """Seconds of the quickest call, once three samples in a row agree or a quarter of the budget is spent."""
    history: list[float] = []
    until = candidate.spent_s + plan.budget_s / 4
    while len(history) < 3 or max(history[-3:]) > WARM_AGREEMENT * min(history[-3:]):
        history += candidate.take(1, plan.cache, clock)
        if candidate.spent_s > until:
            break
    return min(history)


def _try_clocks(candidate: Candidate, plan: Plan, possible: Sequence[str], clock: Callable[[], float]) -> ChosenTimer:
    trials: dict[str, TimerTrial] = {}
    for name in possible:
        if name == "cupti" and settled(trials):
            continue
        try:
            samples = TRIAL_SAMPLES if candidate.call_s < LONG_S else LONG_SAMPLES
            median_s = median(candidate.take(samples, plan.cache, clock, timer=name))
        except CallsDiffer:
            raise
        except MeasurementFailed as error:
            trials[name] = TimerTrial(median_s=None, reason=str(error))
        else:
            trials[name] = TimerTrial(median_s=median_s)
            candidate.seen_by[name] = median_s
    choice = choose(trials)
    if isinstance(choice, Untimed):
        raise MeasurementFailed(choice.reason)
    return choice


def _enough(candidate: Candidate, plan: Plan) -> bool:
    taken = len(candidate.samples)
    if candidate.spent_s >= plan.budget_s:
        # the parent's clock says nothing of fewer requests
        asked = candidate.timer != "host" or candidate.turns >= REQUESTS
        # whose turns are long by a ramp of its own has as many of them: none may choose to be asked less
        asked = asked or (not candidate.long and candidate.spent_s >= REQUESTS * TURN_S)
        return taken >= FEWEST and asked
    if taken < plan.samples or (candidate.timer == "host" and candidate.turns < TURNS):
        return False
    low, high = _timing(candidate, plan, 0.0, 0.0, (), ()).interval_s
    return high - low <= plan.precision * median(candidate.samples)


def _timing(
    candidate: Candidate,
    plan: Plan,
    overhead_s: float,
    resolution_s: float,
    conditions: tuple[str, ...],
    moments: tuple[Moment, ...],
) -> Timing:
    return Timing(
        samples_s=tuple(candidate.samples),
        batch=candidate.batch,
        timer=candidate.timer,
        cache=plan.cache,
        overhead_s=overhead_s,
        conditions=(*conditions, *candidate.notes),
        resolution_s=resolution_s,
        launch_s=candidate.launch_s,
        extra_bytes=candidate.extra_bytes,
        energy_j=candidate.energy_j,
        seen_by=dict(candidate.seen_by),
        moments=moments,
        rounds=tuple(candidate.rounds),
        parent_s=seconds_per_call(candidate.asked),
        terms=candidate.terms,
    )
