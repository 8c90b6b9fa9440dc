"""What all share that are tried on one workload: its memory and answers, the workers, the clock, and the terms of a
call.
"""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opforge.core.definition.operator import Operator
from opforge.core.evidence.timing import Timing, Untimed
from opforge.core.evidence.timing_terms import CALL
from opforge.core.language import spans
from opforge.runner import Worker
from opforge.runner.worker.arena import Arena
from opforge.timing import Candidate, Plan, StateProbe, measure
from opforge.timing.energy import Meter, meter
from opforge.timing.worker_requests import REQUEST_LIMIT_S, Loop, look_at_clocks
from opforge.trial.content_spans import Spans, spans_of
from opforge.verify import CaseCache, PreparedCase, WorkerPool

TURNED = 1 << 23
"""Bytes of inputs that are copied in each turn of 40 ms: three times, which takes a tenth of it."""
WATCHED = 1 << 24
"""Bytes of each input that are looked at after a turn of 40 ms: they take 2 ms."""


@dataclass(kw_only=True)
class Clock:
    """The clock of the workers on a torch device type, looked at once: by the first that was right on its workload."""

    device: str
    loop: Loop | None = None

    def look(self, worker: Worker) -> None:
        """Look at it, where nobody has. Raises NotNow, WorkerDied and WorkerLate."""
        self.loop = self.loop or look_at_clocks(worker, self.device)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One workload in one dtype.

    cases      the operator's cases on this device; `prepared`, the workload itself, is one of them
    pool       where workers come from, and go to
    terms      on which terms candidates are timed (core.evidence.timing_terms)
    limit_s    seconds after which a candidate that is being timed and does not answer is ended
    at_once    how many are bound at the same time
    measured   whether the error on the workload is measured where it is within the bound: on a gigabyte that takes
               longer than the judgement and the timing together
    """

    cases: CaseCache
    pool: WorkerPool
    prepared: PreparedCase
    clock: Clock
    terms: tuple[str, ...] = (CALL,)
    limit_s: float = REQUEST_LIMIT_S
    at_once: int = 1
    measured: bool = True

    @property
    def isolation(self) -> str:
        """What stands between a kernel and this process."""
        return self.cases.host.isolation

    def timed(self, candidates: Sequence[Candidate], plan: Plan, timer: str = "") -> list[Timing | Untimed]:
        """What the clock says of each, in the order given; `timer` "" lets the device's clocks be tried on each."""
        return _timed(self, candidates, plan, timer) if candidates else []


@spans.spanned(
    lambda setting, candidates, plan, timer: (
        "measure",
        f"{setting.cases.operator.name}, {len(candidates)} side by side",
        "",
    )
)
def _timed(setting: Setting, candidates: Sequence[Candidate], plan: Plan, timer: str) -> list[Timing | Untimed]:
    loop = setting.clock.loop
    assert loop is not None  # whoever has candidates has bound one
    device = setting.clock.device
    if device == "cpu":
        # an accelerator's memory is a worker's own. What was written until now is nobody's fault whose turn is first
        setting.prepared.reset()
        for candidate in candidates:
            candidate.watch = lambda: watched(setting.prepared)
            candidate.spans = turned(setting.prepared.arena, setting.cases.operator)
    counter = meter(device) if plan.energy_s > 0 else None
    timings = measure(
        candidates,
        plan,
        timer=timer,
        overhead_s=loop.overhead_s,
        resolution_s=loop.resolution_s,
        conditions=loop.conditions,
        device=device,
        probe=StateProbe(device).read,
        meter=counter if isinstance(counter, Meter) else None,
    )
    return [timings[candidate.name] for candidate in candidates]


def turned(arena: Arena, operator: Operator) -> Spans:
    """The inputs that each turn has in an order of its own; () where a copy of them would take much of a turn, and
    where calls overwrite one.
    """
    spans = () if any(slot.becomes for slot in arena.slots) else spans_of(arena, CALL, operator)
    return spans if sum(size for _, size, _ in spans) <= TURNED else ()


def watched(prepared: PreparedCase) -> Callable[[], str | None]:
    """Watch over the inputs of a workload, which rivals read too: asked afterwards, what is returned says which of them
    were changed meanwhile, and puts them right. Of large inputs a part is watched.
    """
    arena = prepared.arena
    whole, places, large = arena.bytes(), {}, False
    for slot in arena.slots:
        if not slot.written and slot.span_bytes:
            start = slot.offset + secrets.randbelow(max(1, slot.span_bytes - WATCHED + 1))
            places[slot.name] = slice(start, min(start + WATCHED, slot.offset + slot.span_bytes))
            large |= slot.span_bytes > WATCHED

    def changed() -> list[str]:
        # by the C library: threads of PyTorch's would go on spinning in the next turn, on processors that it needs
        compare, here, there = ctypes.CDLL(None).memcmp, whole.data_ptr(), prepared.pristine.data_ptr()
        return [
            name
            for name, place in places.items()
            if compare(
                *(ctypes.c_void_p(start + place.start) for start in (here, there)),
                ctypes.c_size_t(place.stop - place.start),
            )
        ]

    def done() -> str | None:
        found = changed()
        if found:
            prepared.reset()
        return f"it wrote to {', '.join(found)}, which its rivals read too" if found else None

    if large:
        # where nobody looked another may have written, which is not this one's fault
        done()
    return done
