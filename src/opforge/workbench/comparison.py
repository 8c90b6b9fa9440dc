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
from opforge.core.timing import Timing
from opforge.core.verdict import Checked, Pass, Unsupported, Verdict
from opforge.registry import Registry
from opforge.report.words import describe
from opforge.runner import Host, Isolated, Worker, WorkerDied, WorkerLate, fresh_seed
from opforge.timing import Contestant, MeasurementFailed, Plan, Rule, compare, corrected
from opforge.timing.asking import asker
from opforge.timing.duel import sure, take_pairs
from opforge.timing.measure import get_ready
from opforge.verdicts import BRIEF, Bench, Prepared, judge, run_once, verify
from opforge.workbench.adequate import ensure_adequate
from opforge.workbench.ahead import compiling_ahead
from opforge.workbench.audit import CONTENTS, audit
from opforge.workbench.sides import Side, full_config, named, registry_of, toolchain_versions

SHARED_BATCH = 4.0
BLOCKS, FIRST_BLOCK, SECOND_BLOCK = 4, 15, 45
"""Blocks before the first look and after it, and the pairs in each."""

RULE = Rule()
PLAN = Plan()
PREFERENCE = ("host", "cuda_graph", "cuda_event")
"""Clocks that two sides can share, the one with the most in it last."""


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
            raise NotComparable(f"{self.name} cannot be timed on {self.bench.device}: {way}")
        if dtype not in self.verdicts:
            ensure_adequate(self.bench.operator)
            self.verdicts[dtype] = verify(self.bench, self.implementation, dtype, config=self.config, effort=BRIEF)
        verdict = self.verdicts[dtype]
        if isinstance(verdict, Unsupported):
            raise NotComparable(f"{self.name} does not run here in {dtype}: {verdict.reason}")
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
        environments = tuple(f"{name}: {toolchain_versions(side.python or sys.executable)}" for name, side in (("A", a), ("B", b)) if a.python != b.python)
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
        # what is compiled for a config of a side's own is compiled when it is bound
        stack.enter_context(compiling_ahead([corner.implementation for corner in corners if corner.config is None], device))
        for dtype in dtypes or mine.bench.operator.dtypes:
            for workload in (found for found in workloads if mine.bench.operator.takes(found, dtype)):
                outcome = _meet(mine, theirs, workload, dtype, rule, plan, settled)
                if outcome.comparison is not None:
                    outcome = replace(outcome, comparison=replace(outcome.comparison, notes=(*outcome.comparison.notes, *environments)))
                yield outcome


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
    comparison, reason = None, ""
    try:
        for corner in (a, b):
            corner.verified(dtype)
        prepared = a.bench.prepare(case, dtype)
        comparison = _blocks(a, b, prepared, workload, dtype, rule, replace(plan, sample_s=rule.sample_s), settled)
    except NotComparable as error:
        reason = str(error)
    except MeasurementFailed as error:
        reason = f"could not be measured: {error}"
    finally:
        a.bench.forget(case)
    return Outcome(workload=workload.name, dtype=dtype, comparison=comparison, reason=reason, a=a.verdicts.get(dtype), b=b.verdicts.get(dtype))


def _blocks(a: _Corner, b: _Corner, prepared: Prepared, workload: Workload, dtype: str, rule: Rule, plan: Plan, settled: Callable[[Comparison], bool]) -> Comparison:
    """Pairs in blocks, each in two fresh processes, until the verdict is settled or the budget is spent."""
    mine: list[float] = []
    other: list[float] = []
    blocks: list[int] = []
    notes: dict[str, None] = {}
    spent, order = 0.0, random.Random()
    for pairs in (*(FIRST_BLOCK,) * BLOCKS, *(SECOND_BLOCK,) * BLOCKS):
        if len(blocks) > BLOCKS and spent > plan.budget_s:
            notes[f"stopped after {len(mine)} pairs: the time was up; raise --budget for a surer verdict"] = None
            break
        spent += _block(a, b, prepared, dtype, pairs, plan, order, mine, other, notes)
        blocks.append(pairs)
        if len(blocks) == BLOCKS and settled(compare(a.name, b.name, mine, other, rule=rule, blocks=blocks)):
            break
    comparison = compare(a.name, b.name, mine, other, rule=rule, workload=workload.name, dtype=dtype, spent_s=spent, blocks=blocks)
    return replace(comparison, notes=(*comparison.notes, *notes))


def _block(
    a: _Corner, b: _Corner, prepared: Prepared, dtype: str, pairs: int, plan: Plan, order: random.Random, mine: list[float], other: list[float], notes: dict[str, None]
) -> float:
    """One block: bind, warm, take the pairs, and see that both sides are still right on inputs they have not seen; after the
    first block, that what was timed is the work. Seconds spent on the pairs. Raises NotComparable."""
    first_block, done = not mine, len(mine)
    workers: list[Worker] = []
    try:
        contestants = [_contestant(corner, prepared, dtype, workers) for corner in (a, b)]
        _ready(contestants, plan, a.bench.device)
        take_a, take_b = (_taker(contestant, plan) for contestant in contestants)
        started = time.perf_counter()
        for first, second in take_pairs(pairs, take_a, take_b, order):
            mine.append(first)
            other.append(second)
        spent = time.perf_counter() - started
        unseen = [a.bench.refresh(prepared) for _ in range(CONTENTS if first_block else 1)]
        for corner, contestant, samples in zip((a, b), contestants, (mine, other), strict=True):
            if first_block:
                _audited(corner, contestant, samples[done:], plan, unseen)
            else:
                _still_right(corner, contestant, unseen[-1])
            notes.update(dict.fromkeys(contestant.notes))
        return spent
    finally:
        for worker in workers:
            worker.close()


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
    corner.verdicts[dtype] = replace(proof, checked=(*(checked for checked in proof.checked if checked.case.name != prepared.case.name), outcome))
    return Contestant(name=corner.name, proof=proof, ask=asker(worker), launch=launch)


def _ready(contestants: Sequence[Contestant], plan: Plan, device: str) -> None:
    """Warm both, then let them share a clock and, where they are of one order, the number of calls in a sample."""
    for contestant in contestants:
        get_ready(contestant, plan, "", device, time.perf_counter)
    # a trace cannot be started for every pair; CUPTI is chosen where no graph can be captured, and events are what is left there
    timer = max(("cuda_event" if contestant.timer == "cupti" else contestant.timer for contestant in contestants), key=PREFERENCE.index)
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


def _audited(corner: _Corner, contestant: Contestant, samples: Sequence[float], plan: Plan, unseen: Sequence[Prepared]) -> None:
    """What a bench asks of a launch that it has timed, asked of a side."""
    timing = Timing(samples_s=tuple(samples), batch=contestant.batch, timer=contestant.timer, cache=plan.cache, overhead_s=0.0, conditions=())
    found = audit(contestant, timing, unseen, corner.bench.operator, corner.host.isolation)
    if found is not None:
        raise NotComparable(f"{corner.name} was right before it was timed and is not believed after: {describe(found)}")


def _still_right(corner: _Corner, contestant: Contestant, again: Prepared) -> None:
    again.reset()
    answer = contestant.ask({"do": "run", "launch": contestant.launch})
    found = judge(again, corner.bench.operator, corner.host.isolation) if answer["status"] == "ok" else answer
    if not isinstance(found, Checked):
        raise NotComparable(f"{corner.name} was right before it was timed and is not after, on new inputs")
