"""`compare`: two sides verified, bound to the same memory, sampled in pairs, verified again, and judged."""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from opforge.backends import Native, backend
from opforge.core.comparison import Comparison
from opforge.core.implementation import Config, Implementation
from opforge.core.operator import Case, Workload
from opforge.core.verdict import Checked, Pass, Verdict
from opforge.registry import Registry
from opforge.runner import Host, Isolated, Worker, WorkerDied, WorkerLate, fresh_seed
from opforge.timing import Contestant, MeasurementFailed, Plan, Rule, corrected, duel
from opforge.timing.duel import sure
from opforge.timing.measure import get_ready
from opforge.verdicts import Bench, Prepared, judge, run_once, verify
from opforge.workbench.asking import asker
from opforge.workbench.sides import Side, full_config, named, registry_of

SHARED_BATCH = 4.0
RULE = Rule()
PLAN = Plan()
PREFERENCE = ("host", "cupti", "cuda_graph", "cuda_event")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a comparison came to on one workload and dtype: a Comparison, or why there is none. `a` and `b` are the verdicts."""

    workload: str
    dtype: str
    comparison: Comparison | None
    reason: str
    a: Verdict | None
    b: Verdict | None


class NotComparable(Exception):
    """One side cannot take part; the message says which and why."""


@dataclass(kw_only=True)
class _Corner:
    """One side with everything it needs to take part."""

    side: Side
    name: str
    bench: Bench
    implementation: Implementation
    config: Config | None
    host: Host
    verdicts: dict[str, Verdict] = field(default_factory=dict)

    def verified(self, dtype: str) -> Pass:
        """The Pass on the operator's cases, asked for once per dtype. Raises NotComparable."""
        way = backend(self.implementation.backend).way(self.bench.device)
        if not isinstance(way, Native):
            raise NotComparable(f"{self.name} is not timed on this device: {way}")
        if dtype not in self.verdicts:
            self.verdicts[dtype] = verify(self.bench, self.implementation, dtype, config=self.config)
        verdict = self.verdicts[dtype]
        if not isinstance(verdict, Pass):
            raise NotComparable(f"{self.name} has no Pass in {dtype} ({type(verdict).__name__}): only right answers are timed. See: opforge verify {self.side.operator}")
        return verdict


def compare_sides(
    registry: Registry,
    a: Side,
    b: Side,
    host: Host,
    *,
    device: str = "cpu",
    dtypes: Sequence[str] = (),
    workloads: Sequence[Workload] = (),
    rule: Rule = RULE,
    plan: Plan = PLAN,
    settled: Callable[[Comparison], bool] = sure,
) -> Generator[Outcome, None, None]:
    """An Outcome per workload × dtype, as they are found.

    Both sides are bound to one arena, so that they differ in nothing but what they do. Each word stands for itself:
    `corrected` takes their number into account. Raises UsageError for sides that do not exist.
    """
    with tempfile.TemporaryDirectory(prefix="opforge-compare-") as scratch, contextlib.ExitStack() as stack:
        hosts = {python: _host(python, host, stack) for python in {a.python, b.python}}
        corners = []
        for side, other in ((a, b), (b, a)):
            found = registry_of(side, registry, Path(scratch))
            implementation = found.implementation(side.operator, side.implementation)
            bench = Bench(registry=found, operator=found.operator(side.operator), host=hosts[side.python], device=device)
            stack.callback(bench.close)
            corners.append(
                _Corner(side=side, name=named(side, other), bench=bench, implementation=implementation, config=full_config(implementation, side), host=hosts[side.python])
            )
        mine, theirs = corners
        for dtype in dtypes or mine.bench.operator.dtypes:
            for workload in workloads:
                yield _meet(mine, theirs, workload, dtype, rule, plan, settled)


def corrected_outcomes(outcomes: Sequence[Outcome], alpha: float = 0.01) -> tuple[Outcome, ...]:
    """The outcomes with Holm's correction for their number."""
    compared = [outcome.comparison for outcome in outcomes if outcome.comparison is not None]
    again = iter(corrected(compared, alpha))
    return tuple(outcome if outcome.comparison is None else replace(outcome, comparison=next(again)) for outcome in outcomes)


def _host(python: str, host: Host, stack: contextlib.ExitStack) -> Host:
    if python in ("", sys.executable):
        return host
    other = Isolated(python=python)
    stack.callback(other.close)
    return other


def _meet(a: _Corner, b: _Corner, workload: Workload, dtype: str, rule: Rule, plan: Plan, settled: Callable[[Comparison], bool]) -> Outcome:
    case = Case(name=workload.name, axes=workload.axes, why=workload.source, scalars=workload.scalars, seed=fresh_seed())
    workers: list[Worker] = []
    comparison, reason = None, ""
    try:
        for corner in (a, b):
            corner.verified(dtype)
        prepared = a.bench.prepare(case, dtype)
        contestants = [_contestant(corner, prepared, dtype, workers) for corner in (a, b)]
        _ready(contestants, plan, a.bench.device)
        takes = [_taker(contestant, plan) for contestant in contestants]
        comparison = duel(a.name, b.name, takes[0], takes[1], rule, workload=workload.name, dtype=dtype, order=random.Random(), limit_s=plan.budget_s, settled=settled)
        notes = tuple(dict.fromkeys(note for contestant in contestants for note in contestant.notes))
        comparison = replace(comparison, notes=(*comparison.notes, *notes))
        for corner, contestant in zip((a, b), contestants, strict=True):
            _still_right(corner, contestant, a.bench.refresh(prepared))
    except NotComparable as error:
        comparison, reason = None, str(error)
    except MeasurementFailed as error:
        comparison, reason = None, f"could not be measured: {error}"
    finally:
        for worker in workers:
            worker.close()
        a.bench.forget(case)
    return Outcome(workload=workload.name, dtype=dtype, comparison=comparison, reason=reason, a=a.verdicts.get(dtype), b=b.verdicts.get(dtype))


def _contestant(corner: _Corner, prepared: Prepared, dtype: str, workers: list[Worker]) -> Contestant:
    """Bound to the shared arena in a worker of its own, and right on the workload itself. Raises NotComparable."""
    try:
        worker = corner.host.worker(backend(corner.implementation.backend).environment(corner.bench.device))
        workers.append(worker)
        found = run_once(corner.bench, worker, corner.implementation, prepared, corner.config)
    except (WorkerDied, WorkerLate) as error:
        raise NotComparable(f"{corner.name}: {error}") from error
    if isinstance(found, str):
        raise NotComparable(f"{corner.name} does not take {prepared.case.name}: {found}")
    launch, outcome = found
    if not isinstance(outcome, Checked):
        raise NotComparable(f"{corner.name} is wrong on {prepared.case.name} ({type(outcome).__name__}): {getattr(outcome, 'cause', '') or getattr(outcome, 'reason', '')}")
    proof = corner.verified(dtype)
    # the workload's own check joins the others: its accuracy is what a gate compares
    corner.verdicts[dtype] = replace(proof, checked=(*proof.checked, outcome))
    return Contestant(name=corner.name, proof=proof, ask=asker(worker), launch=launch)


def _ready(contestants: Sequence[Contestant], plan: Plan, device: str) -> None:
    """Warm both, then let them share a clock and, where they are of one order, the number of calls in a sample."""
    for contestant in contestants:
        get_ready(contestant, plan, "", device, time.perf_counter)
    timer = max((contestant.timer for contestant in contestants), key=PREFERENCE.index)
    most, fewest = (choose(contestant.batch for contestant in contestants) for choose in (max, min))
    for contestant in contestants:
        contestant.timer = timer
        if most <= SHARED_BATCH * fewest:
            contestant.batch = most


def _taker(contestant: Contestant, plan: Plan) -> Callable[[], float]:
    def take() -> float:
        # one call before the clock starts: the other side has just had the caches and the cores
        return contestant.take(1, plan.cache, time.perf_counter, lead=1)[0]

    return take


def _still_right(corner: _Corner, contestant: Contestant, again: Prepared) -> None:
    again.reset()
    answer = contestant.ask({"do": "run", "launch": contestant.launch})
    found = judge(again, corner.bench.operator, corner.host.isolation) if answer["status"] == "ok" else answer
    if not isinstance(found, Checked):
        raise NotComparable(f"{corner.name} was right before it was timed and is not after, on new inputs")
