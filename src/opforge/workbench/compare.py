"""`compare`: candidate A and baseline B verified, bound to the same memory, sampled in pairs, verified again, and
judged."""

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
from opforge.core.definition.implementation import Config, Implementation
from opforge.core.definition.operator import Case, Workload
from opforge.core.evidence.comparison import Comparison
from opforge.core.evidence.timing import Timing
from opforge.core.evidence.verdict import Inaccurate, Pass, Proof, Unsupported, Verdict
from opforge.registry import Registry
from opforge.report.record_text import describe
from opforge.runner import Host, Isolated, fresh_seed
from opforge.timing import Candidate, MeasurementFailed, Plan, Rule, compare, corrected
from opforge.timing.measure import get_ready
from opforge.timing.paired_sampling import sure, take_pairs
from opforge.trial import (
    Clock,
    NotReady,
    Point,
    Ready,
    Setting,
    believed,
    bind,
    check,
    compiling_ahead,
    ensure_adequate,
    far_values,
    leave,
    still_right,
    unseen_contents,
)
from opforge.verify import BRIEF, CaseCache, PreparedCase
from opforge.workbench.sides import Side, full_config, named, registry_of, toolchain_versions

SHARED_BATCH = 4.0
PAIRS = 15
"""Pairs in a block."""

RULE = Rule()
PLAN = Plan()
PREFERENCE = ("host", "cuda_graph", "cuda_event")
"""Clocks that two sides can share, the one with the most in it last."""


@dataclass(frozen=True, kw_only=True)
class SidesCompared:
    """What a comparison came to on one workload and dtype: a Comparison, or why there is none. `a` and `b` are the
    verdicts.
    """

    workload: str
    dtype: str
    comparison: Comparison | None
    reason: str
    a: Verdict | None
    b: Verdict | None


class NotComparable(Exception):
    """One side cannot take part; the message says which and why."""


@dataclass(kw_only=True)
class Contender:
    """A side with everything it needs to take part. `verdicts` are from the operator's cases, by dtype; `seen` is the
    newest, the workload's own check
    included."""

    side: Side
    name: str
    cases: CaseCache
    implementation: Implementation
    config: Config | None
    clock: Clock
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    seen: Verdict | None = None

    def verified(self, dtype: str) -> Proof:
        """The Pass (or a baseline that is known to be inaccurate) on the operator's cases, asked for once per dtype.
        Raises NotComparable.
        """
        mode = backend(self.implementation.backend).execution_mode(self.cases.device)
        if not isinstance(mode, Native):
            raise NotComparable(f"{self.name} cannot be timed on {self.cases.device}: {mode}")
        if dtype not in self.verdicts:
            ensure_adequate(self.cases.operator)
            self.verdicts[dtype] = check(self.cases, self.implementation, dtype, BRIEF, self.config)
        self.seen = verdict = self.verdicts[dtype]
        if isinstance(verdict, Unsupported):
            raise NotComparable(f"{self.name} does not run here in {dtype}: {verdict.reason}")
        if not isinstance(verdict, Pass | Inaccurate):
            raise NotComparable(
                f"{self.name} did not pass in {dtype} ({type(verdict).__name__}): only right answers are timed. See: "
                f"opforge verify {self.side.operator}"
            )
        return verdict

    def bound(self, prepared: PreparedCase) -> tuple[Setting, Ready]:
        """Bound to the shared memory in a worker of its own, and right on the workload itself. Raises NotComparable."""
        point = Point(implementation=self.implementation, proof=self.verified(prepared.dtype), config=self.config)
        setting = Setting(cases=self.cases, pool=self.cases.workers(), prepared=prepared, clock=self.clock)
        (item,) = bind(setting, [point])
        if isinstance(item, NotReady):
            self.seen = item.verdict
            if isinstance(item.verdict, Unsupported):
                raise NotComparable(f"{self.name} does not take {prepared.case.name}: {item.verdict.reason}")
            raise NotComparable(f"{self.name} is not timed on {prepared.case.name}: {describe(item.verdict)}")
        self.seen = item.proof
        return setting, item


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
) -> Generator[SidesCompared, None, None]:
    """A SidesCompared per workload × dtype, as they are found.

    Both sides are bound to one arena, so that they differ in nothing but what they do. Each word stands for itself:
    `corrected` takes their number into account. Raises UsageError for sides that do not exist.
    """
    with tempfile.TemporaryDirectory(prefix="opforge-compare-") as scratch, contextlib.ExitStack() as stack:
        hosts = {python: _host(python, host, stack) for python in {a.python, b.python}}
        environments = tuple(
            f"{name}: {toolchain_versions(side.python or sys.executable)}"
            for name, side in (("A", a), ("B", b))
            if a.python != b.python
        )
        contenders = []
        for side, other in ((a, b), (b, a)):
            home = registry_of(side, registry, Path(scratch))
            implementation = home.implementation(side.operator, side.implementation)
            cases = CaseCache(
                registry=home, operator=home.operator(side.operator), host=hosts[side.python], device=device
            )
            stack.callback(cases.close)
            config = full_config(implementation, side)
            contenders.append(
                Contender(
                    side=side,
                    name=named(side, other),
                    cases=cases,
                    implementation=implementation,
                    config=config,
                    clock=Clock(device=device),
                )
            )
        mine, theirs = contenders
        # what is compiled for a config of a side's own is compiled when it is bound
        stack.enter_context(
            compiling_ahead([contender.implementation for contender in contenders if contender.config is None], device)
        )
        for dtype in dtypes or mine.cases.operator.dtypes:
            for workload in (item for item in workloads if mine.cases.operator.takes(item, dtype)):
                outcome = meet(mine, theirs, workload, dtype, rule, plan, settled)
                if outcome.comparison is not None:
                    outcome = replace(
                        outcome,
                        comparison=replace(outcome.comparison, notes=(*outcome.comparison.notes, *environments)),
                    )
                yield outcome


def corrected_outcomes(outcomes: Sequence[SidesCompared], alpha: float = 0.01) -> tuple[SidesCompared, ...]:
    """The outcomes with Holm's correction for their number."""
    compared = [outcome.comparison for outcome in outcomes if outcome.comparison is not None]
    again = iter(corrected(compared, alpha))
    return tuple(
        outcome if outcome.comparison is None else replace(outcome, comparison=next(again)) for outcome in outcomes
    )


def _host(python: str, host: Host, stack: contextlib.ExitStack) -> Host:
    if python in ("", sys.executable):
        return host
    other = Isolated(python=python)
    stack.callback(other.close)
    return other


def meet(
    a: Contender,
    b: Contender,
    workload: Workload,
    dtype: str,
    rule: Rule,
    plan: Plan,
    settled: Callable[[Comparison], bool] = sure,
) -> SidesCompared:
    """What comes of two contenders on one workload and dtype, on fresh inputs, each pair of processes new. Both may
    share a CaseCache: the operator's cases are prepared once then, however many meet.
    """
    case = Case(
        name=workload.name,
        axes=workload.axes,
        why=workload.source,
        scalars=workload.scalars,
        layout=workload.layout,
        seed=fresh_seed(),
    )
    comparison, reason = None, ""
    a.seen = b.seen = None
    try:
        for contender in (a, b):
            contender.verified(dtype)
        prepared = a.cases.prepare(case, dtype)
        comparison = _blocks(a, b, prepared, workload, dtype, rule, replace(plan, sample_s=rule.sample_s), settled)
    except NotComparable as error:
        reason = str(error)
    except MeasurementFailed as error:
        reason = f"could not be measured: {error}"
    finally:
        a.cases.forget(case)
    return SidesCompared(workload=workload.name, dtype=dtype, comparison=comparison, reason=reason, a=a.seen, b=b.seen)


@dataclass(kw_only=True)
class _Pairs:
    """What was taken until now: seconds per call of either side, pair by pair; what was noted; and the seconds
    spent.
    """

    mine: list[float] = field(default_factory=list)
    other: list[float] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    spent_s: float = 0.0


def _blocks(
    a: Contender,
    b: Contender,
    prepared: PreparedCase,
    workload: Workload,
    dtype: str,
    rule: Rule,
    plan: Plan,
    settled: Callable[[Comparison], bool],
) -> Comparison:
    """Pairs in blocks, each in two fresh processes, until the verdict is settled or the budget is spent."""
    taken, order = _Pairs(), random.Random()
    blocks: list[int] = []
    drawn = order.randrange(2)
    while len(blocks) < rule.blocks[-1]:
        if len(blocks) > rule.blocks[0] and taken.spent_s > plan.budget_s:
            taken.notes[
                f"stopped after {len(taken.mine)} pairs: the time was up; raise --budget for a surer verdict"
            ] = None
            break
        _block(a, b, prepared, plan, order, taken, b_first=(len(blocks) + drawn) % 2 == 1)
        blocks.append(PAIRS)
        if len(blocks) in rule.blocks and settled(
            compare(a.name, b.name, taken.mine, taken.other, rule=rule, blocks=blocks)
        ):
            break
    comparison = compare(
        a.name,
        b.name,
        taken.mine,
        taken.other,
        rule=rule,
        workload=workload.name,
        dtype=dtype,
        spent_s=taken.spent_s,
        blocks=blocks,
    )
    return replace(comparison, notes=(*comparison.notes, *taken.notes))


def _block(
    a: Contender,
    b: Contender,
    prepared: PreparedCase,
    plan: Plan,
    order: random.Random,
    taken: _Pairs,
    *,
    b_first: bool,
    again: bool = False,
) -> None:
    """One block: bind, warm, take the pairs, and see that both sides are still right on inputs they have not seen;
    after the first block, that what was timed is the work. Raises NotComparable.

    A block in which a signal from outside ended a process is taken once more.

    b_first   b is bound and warmed before a: of equal sides the first one is slower by 0.3 to 0.5 % (two CPU cores)
    """
    first_block, done, struck = not taken.mine, len(taken.mine), False
    step = -1 if b_first else 1
    bound: list[tuple[Setting, Ready]] = []
    try:
        for contender in (a, b)[::step]:
            bound.append(contender.bound(prepared))
        candidates = [ready.candidates()[0] for _, ready in bound]
        _warm(candidates, plan, a.cases.device)
        bound, candidates = bound[::step], candidates[::step]
        take_a, take_b = (_taker(candidate, plan) for candidate in candidates)
        started = time.perf_counter()
        for first, second in take_pairs(PAIRS, take_a, take_b, order):
            taken.mine.append(first)
            taken.other.append(second)
        taken.spent_s += time.perf_counter() - started
        far = far_values(bound[0][0]) if first_block else None
        unseen = unseen_contents(bound[0][0]) if first_block else [a.cases.refresh(prepared)]
        for contender, (setting, _), candidate, samples in zip(
            (a, b), bound, candidates, (taken.mine, taken.other), strict=True
        ):
            if first_block:
                _audited(contender, setting, candidate, samples[done:], plan, unseen, far)
            elif still_right(candidate, unseen[-1], setting.cases.operator, setting.isolation) is not None:
                raise NotComparable(f"{contender.name} was right before it was timed and is not after, on new inputs")
            taken.notes.update(dict.fromkeys(candidate.notes))
    except (NotComparable, MeasurementFailed):
        if again or not any(ready.worker.struck() for _, ready in bound):
            raise
        del taken.mine[done:], taken.other[done:]
        struck = True
    finally:
        for setting, ready in bound:
            leave(setting, [ready])
    if struck:
        taken.notes["a signal from outside ended a process; its pairs were taken again"] = None
        _block(a, b, prepared, plan, order, taken, b_first=b_first, again=True)


def _warm(candidates: Sequence[Candidate], plan: Plan, device: str) -> None:
    """Warm both, then let them share a clock and, where they are of one order, the number of calls in a sample."""
    for candidate in candidates:
        get_ready(candidate, plan, "", device, time.perf_counter)
    # a trace cannot be started for every pair; CUPTI is chosen where no graph can be captured, and events are what is
    # left there
    timer = max(
        ("cuda_event" if candidate.timer == "cupti" else candidate.timer for candidate in candidates),
        key=PREFERENCE.index,
    )
    most, fewest = (choose(candidate.batch for candidate in candidates) for choose in (max, min))
    for candidate in candidates:
        candidate.timer = timer
        if most <= SHARED_BATCH * fewest:
            candidate.batch = most


def _taker(candidate: Candidate, plan: Plan) -> Callable[[], float]:
    def take() -> float:
        # one call before the clock starts: the other side has just had the caches and the cores
        return candidate.take(1, plan.cache, time.perf_counter, lead=1)[0]

    return take


def _audited(
    contender: Contender,
    setting: Setting,
    candidate: Candidate,
    samples: Sequence[float],
    plan: Plan,
    unseen: Sequence[PreparedCase],
    far: PreparedCase | None,
) -> None:
    """What a bench asks of a launch that it has timed, asked of a side. Raises NotComparable."""
    timing = Timing(
        samples_s=tuple(samples),
        batch=candidate.batch,
        timer=candidate.timer,
        cache=plan.cache,
        overhead_s=0.0,
        conditions=(),
    )
    verdict = believed(setting, candidate, timing, unseen, far)
    if verdict is not candidate.proof:
        raise NotComparable(
            f"{contender.name} was right before it was timed and is not believed after: {describe(verdict)}"
        )
