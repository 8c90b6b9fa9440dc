"""How a worker is asked: its failures become answers, and its clocks are looked at once before they are trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from opforge.core import units
from opforge.core.errors import NotNow
from opforge.machine import warnings
from opforge.runner import Worker, WorkerDied, WorkerLate
from opforge.timing.measure import Ask

REQUEST_LIMIT_S = 300.0
COLD = 1.15


def asker(worker: Worker, limit_s: float = REQUEST_LIMIT_S) -> Ask:
    """`worker.request` whose death or lateness (after `limit_s`) is an answer, {"status": "failed"}, with the reason."""

    def ask(message: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return worker.request(message, (), limit_s)
        except WorkerDied as error:
            return {"status": "failed", "reason": f"the worker ended with status {error.status}: {error.stderr[-300:]}"}
        except WorkerLate as error:
            return {"status": "failed", "reason": str(error)}

    return ask


@dataclass(frozen=True, kw_only=True)
class Loop:
    """The clock of a worker: what the sampling loop costs per call, the clock's step, both in seconds, and what a reader should know."""

    overhead_s: float
    resolution_s: float
    conditions: tuple[str, ...]


def look_at_clocks(worker: Worker, device: str) -> Loop:
    """The Loop of a worker whose kernels run on a torch device type. On a GPU the cold cache is put to the test.

    Raises NotNow where that fails, WorkerDied and WorkerLate.
    """
    answer = worker.request({"do": "overhead", "batch": 1000, "count": 20, "device": device})
    if answer["status"] != "ok":
        raise NotNow(f"The clocks of {device} cannot be looked at: {answer.get('reason')}. See what is here with: opforge doctor")
    found = [f"threads {answer['threads']} on {answer['cpus']} processors", *(f"warning: {words}" for words in warnings(device, load=False))]
    if "cold_s" in answer:
        warm, cold = float(answer["warm_s"]), float(answer["cold_s"])
        told = f"a probe that fits the cache takes {units.seconds(warm)} warm and {units.seconds(cold)} after the flush"
        found.append(f"cold is cold: {told}" if cold > COLD * warm else f"cold not achieved: {told}; read cold times as warm ones")
    return Loop(overhead_s=median(answer["samples"]), resolution_s=float(answer.get("event_step", answer["step"])), conditions=tuple(found))
