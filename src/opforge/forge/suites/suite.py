"""A folder of tasks run: each is read, generated, verified, and timed against what PyTorch does; with the figures
that such suites are told by.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from opforge.core.evidence.record import Record
from opforge.core.evidence.verdict import Pass, may_be_timed
from opforge.core.language.errors import UsageError
from opforge.forge.generate import generate
from opforge.forge.suites.own_module import OWN
from opforge.forge.suites.tasks import Task
from opforge.registry import load
from opforge.runner import Host
from opforge.timing import Plan
from opforge.verify import QUICK
from opforge.workbench import BenchOptions, bench

BASELINES = ("torch", "compile")
"""Backends whose best time is what a task is compared with."""


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """What came of one task.

    outcome    "correct", "wrong", or "not generated"
    reason     of what is not correct, or has no time
    candidate  the fastest generated implementation that passed, and `baseline` PyTorch's fastest; "" for none
    speed_up   baseline's median time over the candidate's, of one bench that timed both in turns; None without both
    roof       the candidate's share of the roofline bound; None where no bound is known
    solutions  of solutions that came with the task: the speed-up over PyTorch's fastest, or the verdict
    left_out   what of the task was not taken, with reasons
    """

    task: str
    outcome: str
    reason: str = ""
    candidate: str = ""
    baseline: str = ""
    speed_up: float | None = None
    roof: float | None = None
    solutions: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SuiteSummary:
    """The figures of a suite, over all of its tasks; `fast` holds the share that is correct and at least so fast."""

    tasks: int
    correct: int
    fast: tuple[tuple[float, float], ...]
    median: float | None
    geometric_mean: float | None
    roof: float | None


def run_task(
    task: Task, home: Path, host: Host, *, device: str, dtype: str, backends: Sequence[str], plan: Plan
) -> TaskResult:
    """One task: read, generated into `home`, verified and timed on the workload that fits the device.

    dtype   "": float32 where the task has it, else its own
    """
    try:
        prepared = task.prepare(task.name)
        generate(load(), prepared.definition, home, more=prepared.more)
    except UsageError as error:
        return TaskResult(task=task.label, outcome="not generated", reason=str(error).split("\n")[0])
    registry = load((home,))
    known = prepared.definition.dtypes
    kind = dtype or ("float32" if "float32" in known else known[0])
    options = BenchOptions(device=device, dtypes=(kind,), backends=tuple(backends), effort=QUICK, plan=plan, most=1)
    solutions = tuple(file.split(".")[0] for file in prepared.more.files if file != f"{OWN}.py")
    found = judged(task.label, list(bench(registry, [task.name], options, host)), solutions)
    return replace(found, left_out=prepared.left_out)


def judged(task: str, records: Sequence[Record], solutions: Sequence[str] = ()) -> TaskResult:
    """What the records of one bench say of a task; solutions that came with it are told beside what was generated."""
    brought, records = (
        [one for one in records if one.implementation in solutions],
        [one for one in records if one.implementation not in solutions],
    )
    found = _generated(task, records)
    least = min(
        (time for one in records if one.backend in BASELINES and (time := _timed(one)) is not None), default=None
    )
    told = {}
    for one in brought:
        time = _timed(one)
        ratio = least / time if least is not None and time is not None else None
        told[one.implementation] = type(one.verdict).__name__ if ratio is None else f"{ratio:.2f}"
    return replace(found, solutions=told)


def _timed(record: Record) -> float | None:
    """The median of a record that passed, or of a baseline that is known to be inaccurate."""
    return _median(record) if may_be_timed(record.verdict, record.backend) else None


def _generated(task: str, records: Sequence[Record]) -> TaskResult:
    passed = [one for one in records if isinstance(one.verdict, Pass)]
    own = [one for one in records if one.backend not in BASELINES]
    wrong = [one for one in own if type(one.verdict).__name__ in ("Mismatch", "Broken", "Crash", "Timeout")]
    if wrong:
        return TaskResult(
            task=task, outcome="wrong", reason=f"{wrong[0].implementation}: {type(wrong[0].verdict).__name__}"
        )
    if not any(one in passed for one in own):
        return TaskResult(task=task, outcome="wrong", reason="no generated implementation passed here")
    timed = [(one, _timed(one)) for one in records]
    candidates = [(time, one) for one, time in timed if time is not None and one.backend not in BASELINES]
    baselines = [(time, one) for one, time in timed if time is not None and one.backend in BASELINES]
    if not candidates or not baselines:
        side = "a generated implementation" if not candidates else "PyTorch"
        return TaskResult(task=task, outcome="correct", reason=f"{side} has no time here")
    best, candidate = min(candidates, key=lambda item: item[0])
    least, baseline = min(baselines, key=lambda item: item[0])
    return TaskResult(
        task=task,
        outcome="correct",
        candidate=candidate.implementation,
        baseline=baseline.implementation,
        speed_up=least / best,
        roof=candidate.roof_s / best if candidate.roof_s else None,
    )


def summary(results: Sequence[TaskResult], limits: Sequence[float] = (1.0, 1.2, 2.0)) -> SuiteSummary:
    """The figures over all tasks; a task that is not correct is not fast."""
    ratios = [one.speed_up for one in results if one.speed_up is not None]
    roofs = [one.roof for one in results if one.roof is not None]
    count = max(1, len(results))
    return SuiteSummary(
        tasks=len(results),
        correct=sum(one.outcome == "correct" for one in results),
        fast=tuple((limit, sum(ratio > limit for ratio in ratios) / count) for limit in limits),
        median=statistics.median(ratios) if ratios else None,
        geometric_mean=math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None,
        roof=statistics.median(roofs) if roofs else None,
    )


def lines(results: Sequence[TaskResult]) -> Iterator[str]:
    """The summary as text."""
    of = summary(results)
    yield f"{of.correct} of {of.tasks} correct"
    yield ", ".join(f"fast_{limit:g} {share:.0%}" for limit, share in of.fast)
    if of.median is not None and of.geometric_mean is not None:
        yield f"speed-up over PyTorch's best: median {of.median:.2f}, geometric mean {of.geometric_mean:.2f}"
    if of.roof is not None:
        yield f"median share of the roof {of.roof:.0%}"


def _median(record: Record) -> float | None:
    timing: Any = record.timing
    return getattr(timing, "median_s", None)
