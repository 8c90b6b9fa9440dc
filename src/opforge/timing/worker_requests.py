"""How a worker is asked: its failures become answers, and its clocks are looked at once before they are trusted."""

from __future__ import annotations

import os
from dataclasses import dataclass
from statistics import median
from typing import cast

from opforge.core.evidence.timing_terms import WORDS
from opforge.core.language import units
from opforge.core.language.errors import NotNow
from opforge.machine import warnings
from opforge.runner import Worker, WorkerDied, WorkerLate
from opforge.runner.wire.messages import A, Failed, Failure, Overhead, Question, Sample, Terms, Unfit
from opforge.runner.worker.sample_requests import SampleRequest
from opforge.timing.measure import Ask, MeasurementFailed

REQUEST_LIMIT_S = 300.0
"""The caller's limit, for requests that last long by themselves, such as a trace; a hang is found by
runner.parent.watchdog long before.
"""
COLD = 1.15
"""How much longer the probe of the cache takes at least after a flush. On an H200 it takes 1.66 times as long (8.3 us
warm, 13.8 us cold: docs/timing.md); 1.15 is beyond the 10 % by which two clocks may disagree.
"""


def asker(worker: Worker, limit_s: float = REQUEST_LIMIT_S) -> Ask:
    """`worker.request` whose death or lateness (after `limit_s`) is an answer, Failed, with the reason."""

    def ask(question: Question[A]) -> A | Failure:
        descriptors: list[int] = []
        try:
            if isinstance(question, Sample) and question.timer == "host":
                shape = SampleRequest(
                    written=question.written,
                    lead=question.lead,
                    batch=question.batch,
                    count=question.count,
                    collected=question.collected,
                    places=question.places,
                    contents=question.contents,
                    spans=question.spans,
                    steps=question.steps,
                )
                descriptors.append(shape.sent())
                # how many calls it is, nobody over there is told beforehand
                question = cast(Question[A], question.untold())
            return worker.request(question, descriptors, limit_s)
        except WorkerDied as error:
            return Failed(reason=f"the worker ended with status {error.status}: {error.stderr[-300:]}")
        except WorkerLate as error:
            return Failed(reason=str(error))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    return ask


def on_terms(ask: Ask, launch: int, terms: str) -> int | None:
    """The number of a bound launch on these terms (core.evidence.timing_terms), in the same worker on the same memory;
    None where there is no such way.

    Raises MeasurementFailed where it cannot be bound so.
    """
    answer = ask(Terms(launch=launch, terms=terms))
    if isinstance(answer, Unfit):
        return None
    if isinstance(answer, Failure):
        raise MeasurementFailed(f"it could not be bound to be timed {WORDS[terms]}: {answer.reason}")
    return answer.launch


@dataclass(frozen=True, kw_only=True)
class Loop:
    """The clock of a worker: what the sampling loop costs per call, the clock's step, both in seconds, and what a
    reader should know.
    """

    overhead_s: float
    resolution_s: float
    conditions: tuple[str, ...]


def look_at_clocks(worker: Worker, device: str) -> Loop:
    """The Loop of a worker whose kernels run on a torch device type. On a GPU the cold cache is put to the test.

    Raises NotNow where that fails, WorkerDied and WorkerLate.
    """
    seen = worker.request(Overhead(batch=1000, count=20, device=device))
    if isinstance(seen, Failure):
        raise NotNow(
            f"The clocks of {device} cannot be looked at: {seen.reason}. See what is here with: opforge doctor"
        )
    conditions = [
        f"threads {seen.threads} on {seen.cpus} processors",
        *(f"warning: {warning}" for warning in warnings(device, load=False)),
    ]
    if seen.warm_s is not None and seen.cold_s is not None:
        warm, cold = seen.warm_s, seen.cold_s
        told = f"a probe that fits the cache takes {units.seconds(warm)} warm and {units.seconds(cold)} after the flush"
        conditions.append(
            f"cold is cold: {told}"
            if cold > COLD * warm
            else f"cold not achieved: {told}; read cold times as warm ones"
        )
    resolution_s = seen.step if seen.event_step is None else seen.event_step
    return Loop(overhead_s=median(seen.samples), resolution_s=resolution_s, conditions=tuple(conditions))
