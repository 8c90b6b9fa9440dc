"""Measures bound launches, taking turns. It asks for a Pass for each of them, and nothing else will do.

The launches live in workers; this process decides how many calls make a sample and how many samples are enough, and
checks each worker's clock against its own. Rounds of samples go from one launch to the next in random order, so that
drift of the machine falls on all of them alike and ratios between them hold.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from opforge.core.timing import Moment, Timing
from opforge.core.verdict import Pass
from opforge.timing import conditions as conditions_of
from opforge.timing.timers import Choice, Trial, candidates, choose, settled

Ask = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Sends a message to the worker that holds a launch, and returns its answer."""

ROUND = 5
"""Samples in a turn. CUPTI takes all of a plan's in one: starting and ending a trace takes half a second."""
FEWEST = 5
DISAGREEMENT = 1.5
TRIAL_SAMPLES = 7
LOOK_EVERY_S = 0.1
WARM_AGREEMENT = 1.1


class MeasurementFailed(Exception):
    """The launch could not be timed, or two clocks disagree about it."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long to measure.

    samples      how many to take at least, unless the budget ends first (never fewer than five)
    budget_s     seconds for each launch
    precision    stop once the 95 % interval of the median is this narrow, as a fraction of the median
    sample_s     the least duration of one sample: shorter kernels are batched up to it, so that the clock's grain is small
    cache        "warm" or "cold" (cold needs a device whose cache can be flushed)
    """

    samples: int = 30
    budget_s: float = 1.0
    precision: float = 0.01
    sample_s: float = 1e-3
    cache: str = "warm"


@dataclass(kw_only=True)
class Contestant:
    """One launch that takes part: its name, the proof that it is right, and how to reach it."""

    name: str
    proof: Pass
    ask: Ask
    launch: int
    samples: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    batch: int = 1
    timer: str = "host"
    spent_s: float = 0.0
    launch_s: float | None = None
    extra_bytes: int | None = None
    seen_by: dict[str, float] = field(default_factory=dict)
    failure: str | None = None

    def take(self, count: int, cache: str, clock: Callable[[], float], *, timer: str | None = None, lead: int = 0) -> list[float]:
        """`count` samples, after `lead` calls that are not timed. Raises MeasurementFailed."""
        message = {"do": "sample", "launch": self.launch, "batch": self.batch, "count": count, "timer": timer or self.timer, "cache": cache, "lead": lead}
        started = clock()
        answer = self.ask(message)
        took = clock() - started
        if answer["status"] != "ok":
            raise MeasurementFailed(str(answer.get("reason", answer)))
        samples = [float(sample) for sample in answer["samples"]]
        batch = int(answer.get("batch", self.batch))
        if len(samples) != count or not all(sample > 0 for sample in samples):
            raise MeasurementFailed("the worker's samples are not what was asked for")
        if sum(samples) * batch > took * DISAGREEMENT:
            raise MeasurementFailed(f"the worker reports {sum(samples) * batch:.3g} s of work inside {took:.3g} s of this process's clock")
        self.spent_s += took
        return samples


def measure(
    contestants: Sequence[Contestant],
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
) -> dict[str, Timing | str]:
    """The Timing of each contestant by name, or why it could not be timed.

    timer        the clock to use; "" tries those of `device` on each kernel and lets the trials decide
    overhead_s   what the sampling loop costs per call; stated in the Timing, never subtracted
    probe        reads the machine's state between rounds

    Warm-up of each ends when three rounds agree within 10 % or a quarter of its budget is spent; only then are samples
    kept, all of them, in order. Each goes on until its median is known to `plan.precision` or its budget is spent.
    """
    shuffle = order or random.Random()
    moments: list[Moment] = [probe()] if probe else []
    for contestant in contestants:
        try:
            get_ready(contestant, plan, timer, device, clock)
            contestant.extra_bytes = _memory(contestant)
        except MeasurementFailed as error:
            contestant.failure = str(error)
    active = [contestant for contestant in contestants if contestant.failure is None]
    if len({contestant.timer for contestant in active}) > 1:
        for contestant in active:
            contestant.notes.append("not every implementation here was timed by the same clock; compare with care")
    last_look = clock()
    while active:
        shuffle.shuffle(active)
        for contestant in active:
            try:
                contestant.samples += contestant.take(max(ROUND, plan.samples) if contestant.timer == "cupti" else ROUND, plan.cache, clock, lead=1 if len(contestants) > 1 else 0)
            except MeasurementFailed as error:
                contestant.failure = str(error)
        if probe and clock() - last_look >= LOOK_EVERY_S:
            moments.append(probe())
            last_look = clock()
        active = [contestant for contestant in active if contestant.failure is None and not _enough(contestant, plan)]
    if probe:
        moments.append(probe())
    said = (*conditions, *conditions_of.words(moments))
    return {contestant.name: contestant.failure or _timing(contestant, plan, overhead_s, resolution_s, said, tuple(moments)) for contestant in contestants}


def get_ready(contestant: Contestant, plan: Plan, timer: str, device: str, clock: Callable[[], float]) -> None:
    """Warm up, choose the clock and the batch; `timer` "" tries those of `device`. Raises MeasurementFailed."""
    possible = (timer,) if timer else candidates(device)
    # what every kernel can be warmed up by: a graph may not be captured, and a trace takes seconds to begin
    contestant.timer = "cuda_event" if "cuda_event" in possible else possible[-1]
    _warm_up(contestant, plan, clock)
    if len(possible) > 1:
        choice = _try_clocks(contestant, plan, possible, clock)
        contestant.timer = choice.timer
        contestant.notes.append(choice.why)
    if contestant.timer != "host":
        answer = contestant.ask({"do": "launch_cost", "launch": contestant.launch, "batch": 20, "count": 5})
        contestant.launch_s = median(answer["samples"]) if answer["status"] == "ok" else None
    contestant.spent_s = 0.0


def _memory(contestant: Contestant) -> int | None:
    answer = contestant.ask({"do": "memory", "launch": contestant.launch})
    found = answer.get("bytes")
    return found if answer["status"] == "ok" and isinstance(found, int) and found >= 0 else None


def _warm_up(contestant: Contestant, plan: Plan, clock: Callable[[], float]) -> None:
    """Single calls until they are stable, then batches until those are: caches, thread pools and clocks take their time."""
    for _ in range(2):
        history: list[float] = []
        while len(history) < 3 or max(history[-3:]) > WARM_AGREEMENT * min(history[-3:]):
            history += contestant.take(1, plan.cache, clock)
            if contestant.spent_s > plan.budget_s / 4:
                break
        contestant.batch = max(1, math.ceil(plan.sample_s / min(history)))


def _try_clocks(contestant: Contestant, plan: Plan, possible: Sequence[str], clock: Callable[[], float]) -> Choice:
    trials: dict[str, Trial] = {}
    for name in possible:
        if name == "cupti" and settled(trials):
            continue
        try:
            found = median(contestant.take(TRIAL_SAMPLES, plan.cache, clock, timer=name))
        except MeasurementFailed as error:
            trials[name] = Trial(median_s=None, reason=str(error))
        else:
            trials[name] = Trial(median_s=found)
            contestant.seen_by[name] = found
    choice = choose(trials)
    if isinstance(choice, str):
        raise MeasurementFailed(choice)
    return choice


def _enough(contestant: Contestant, plan: Plan) -> bool:
    taken = len(contestant.samples)
    if contestant.spent_s >= plan.budget_s:
        return taken >= FEWEST
    if taken < plan.samples:
        return False
    low, high = _timing(contestant, plan, 0.0, 0.0, (), ()).interval_s
    return high - low <= plan.precision * median(contestant.samples)


def _timing(contestant: Contestant, plan: Plan, overhead_s: float, resolution_s: float, conditions: tuple[str, ...], moments: tuple[Moment, ...]) -> Timing:
    return Timing(
        samples_s=tuple(contestant.samples),
        batch=contestant.batch,
        timer=contestant.timer,
        cache=plan.cache,
        overhead_s=overhead_s,
        conditions=(*conditions, *contestant.notes),
        resolution_s=resolution_s,
        launch_s=contestant.launch_s,
        extra_bytes=contestant.extra_bytes,
        seen_by=dict(contestant.seen_by),
        moments=moments,
    )
