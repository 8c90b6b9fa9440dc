"""What all share that are tried on one workload: its memory and answers, the workers, the clock, and the terms of a
call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opforge.core import spans
from opforge.core.timing import Timing, Untimed
from opforge.core.timing_terms import CALL
from opforge.runner import Worker
from opforge.timing import Candidate, Plan, StateProbe, measure
from opforge.timing.worker_requests import REQUEST_LIMIT_S, Loop, look_at_clocks
from opforge.verify import CaseCache, PreparedCase, WorkerPool


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
    terms      on which terms candidates are timed (core.timing_terms)
    limit_s    seconds after which a candidate that is being timed and does not answer is ended
    at_once    how many are bound at the same time
    """

    cases: CaseCache
    pool: WorkerPool
    prepared: PreparedCase
    clock: Clock
    terms: tuple[str, ...] = (CALL,)
    limit_s: float = REQUEST_LIMIT_S
    at_once: int = 1

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
    timings = measure(
        candidates,
        plan,
        timer=timer,
        overhead_s=loop.overhead_s,
        resolution_s=loop.resolution_s,
        conditions=loop.conditions,
        device=device,
        probe=StateProbe(device).read,
    )
    return [timings[candidate.name] for candidate in candidates]
