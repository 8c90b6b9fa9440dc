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
from typing import Any

from opforge.core.timing import Timing
from opforge.core.verdict import Pass

Ask = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Sends a message to the worker that holds a launch, and returns its answer."""

ROUND = 5
FEWEST = 5
DISAGREEMENT = 1.5


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
    failure: str | None = None

    def take(self, count: int, cache: str, clock: Callable[[], float]) -> list[float]:
        """`count` samples. Raises MeasurementFailed."""
        message = {"do": "sample", "launch": self.launch, "batch": self.batch, "count": count, "timer": self.timer, "cache": cache}
        started = clock()
        answer = self.ask(message)
        took = clock() - started
        if answer["status"] != "ok" and self.timer == "cuda_graph":
            # some launches cannot be captured (they allocate or synchronise); the record says which clock was used instead
            self.notes.append(f"no CUDA graph could be captured ({str(answer.get('reason'))[:120]}); timed with events, launch cost included")
            self.timer = "cuda_event"
            return self.take(count, cache, clock)
        if answer["status"] != "ok":
            raise MeasurementFailed(str(answer.get("reason", answer)))
        samples = [float(sample) for sample in answer["samples"]]
        if len(samples) != count or not all(sample > 0 for sample in samples):
            raise MeasurementFailed("the worker's samples are not what was asked for")
        if sum(samples) * self.batch > took * DISAGREEMENT:
            raise MeasurementFailed(f"the worker reports {sum(samples) * self.batch:.3g} s of work inside {took:.3g} s of this process's clock")
        self.spent_s += took
        return samples


def measure(
    contestants: Sequence[Contestant],
    plan: Plan,
    *,
    timer: str,
    overhead_s: float,
    conditions: tuple[str, ...] = (),
    clock: Callable[[], float] = time.perf_counter,
    order: random.Random | None = None,
) -> dict[str, Timing | str]:
    """The Timing of each contestant by name, or why it could not be timed.

    Warm-up of each ends when three rounds agree within 10 % or a quarter of its budget is spent; only then are samples
    kept, all of them, in order. Each goes on until its median is known to `plan.precision` or its budget is spent.
    """
    shuffle = order or random.Random()
    for contestant in contestants:
        contestant.timer = timer
        try:
            _warm_up(contestant, plan, clock)
        except MeasurementFailed as error:
            contestant.failure = str(error)
    active = [contestant for contestant in contestants if contestant.failure is None]
    while active:
        shuffle.shuffle(active)
        for contestant in active:
            try:
                contestant.samples += contestant.take(ROUND, plan.cache, clock)
            except MeasurementFailed as error:
                contestant.failure = str(error)
        active = [contestant for contestant in active if contestant.failure is None and not _enough(contestant, plan)]
    return {contestant.name: contestant.failure or _timing(contestant, plan, overhead_s, conditions) for contestant in contestants}


def _warm_up(contestant: Contestant, plan: Plan, clock: Callable[[], float]) -> None:
    history: list[float] = []
    while len(history) < 3 or max(history[-3:]) > 1.1 * min(history[-3:]):
        history += contestant.take(1, plan.cache, clock)
        if contestant.spent_s > plan.budget_s / 4:
            break
    contestant.batch = max(1, math.ceil(plan.sample_s / min(history)))
    contestant.spent_s = 0.0


def _enough(contestant: Contestant, plan: Plan) -> bool:
    taken = len(contestant.samples)
    if contestant.spent_s >= plan.budget_s:
        return taken >= FEWEST
    if taken < plan.samples:
        return False
    low, high = _timing(contestant, plan, 0.0, ()).interval_s
    return high - low <= plan.precision * sorted(contestant.samples)[taken // 2]


def _timing(contestant: Contestant, plan: Plan, overhead_s: float, conditions: tuple[str, ...]) -> Timing:
    return Timing(
        samples_s=tuple(contestant.samples),
        batch=contestant.batch,
        timer=contestant.timer,
        cache=plan.cache,
        overhead_s=overhead_s,
        conditions=(*conditions, *contestant.notes),
    )
