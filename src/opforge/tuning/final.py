"""The final of a tuning: the best of each implementation interleaved. The fastest is verified with all cases and
audited as a bench does it; then it is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opforge.core.implementation import Config
from opforge.core.record import Record
from opforge.core.timing import Timing
from opforge.core.verdict import Pass
from opforge.machine import detect
from opforge.registry.tuned_choices import choice_for, choices_path, keep
from opforge.timing import Candidate
from opforge.trial import believed, check, on_the_workload, unseen_contents
from opforge.tuning.job import Job, Passed, attempt
from opforge.tuning.outcomes import FAILED, SAME_CODE, SLOWER, TIMED, Tuned, TuneOptions
from opforge.tuning.space import eligible, within_reach
from opforge.verify import BRIEF

FINAL_SAMPLES = 3.0
"""The final is measured so many times as long as a trial."""


@dataclass(frozen=True, kw_only=True)
class _Standing:
    """A finalist that was timed in the final."""

    finalist: Passed
    candidate: Candidate
    timing: Timing


def add_previous(job: Job, finalists: list[Passed]) -> None:
    """What had been chosen before takes part in the final, where it is not among the finalists: it is replaced only if
    it is beaten.
    """
    operator, scalars = job.operator, job.workload.scalars
    path = choices_path(operator, detect(job.options.device).name)
    old = choice_for(
        path, operator.compute_dtype_of(job.dtype, scalars), job.workload.axes, operator.kind_of_call(scalars)
    )
    if old is None or any(
        item.implementation.name == old.implementation and item.config.as_dict() == old.config.as_dict()
        for item in finalists
    ):
        return
    known = {
        item.name: item
        for item in eligible(job.registry, operator, job.workload, job.dtype, TuneOptions(device=job.options.device))
    }
    implementation = known.get(old.implementation)
    if implementation is None or set(old.config.as_dict()) != set(implementation.default.as_dict()):
        return  # it was chosen among the parameters of another version
    passed = attempt(job, implementation, old.config, None).passed
    if passed is not None:
        finalists.append(passed)


def hold_final(job: Job, finalists: Sequence[Passed], write: bool) -> Tuned:
    """All finalists within reach interleaved; the fastest that passes every case, and whose time is believed, is kept.
    Where none of them is, those beyond have a final of their own: slow and right is a choice, fast and wrong is none.
    """
    seconds_of: dict[str, float] = {}
    for item in finalists:
        if item.timing is not None:
            seconds_of[item.implementation.name] = min(
                item.seconds, seconds_of.get(item.implementation.name, float("inf"))
            )
    _, far = within_reach(seconds_of)
    beyond = [item for item in finalists if item.implementation.name in far]
    near = [item for item in finalists if item.implementation.name not in far]
    candidates = [item.candidate() for item in near]
    timings = job.measure(candidates, FINAL_SAMPLES)
    standing = sorted(
        (
            _Standing(finalist=item, candidate=candidate, timing=timing)
            for item, candidate, timing in zip(near, candidates, timings, strict=True)
            if isinstance(timing, Timing)
        ),
        key=lambda item: item.timing.median_s,
    )
    for first in standing:
        record = _judged(job, first)
        if record.timing is not None and record.timing.suspect is None:
            return _kept(job, record, first, standing, beyond, write)
    if beyond:
        return hold_final(job, beyond, write)
    why = (
        "no point passed"
        if sum(job.counts.values())
        else "no implementation that was asked for takes this workload here"
    )
    return _tuned(job, f"{why}; see: opforge verify {job.operator.name}")


def _judged(job: Job, first: _Standing) -> Record:
    """The record of who stands first: verified with all cases, and its time audited."""
    finalist, candidate = first.finalist, first.candidate
    verdict = check(job.setting.cases, finalist.implementation, job.dtype, BRIEF, finalist.config)
    if isinstance(verdict, Pass):
        proof = on_the_workload(finalist.implementation, verdict, finalist.proof.checked[-1])
        assert isinstance(proof, Pass)
        candidate.proof = proof
        verdict = believed(job.setting, candidate, first.timing, unseen_contents(job.setting))
    return job.record(finalist.implementation, finalist.config, verdict, first.timing, trial=False)


def _kept(
    job: Job, record: Record, winner: _Standing, standing: Sequence[_Standing], beyond: Sequence[Passed], write: bool
) -> Tuned:
    name, default, median_s = (
        winner.finalist.implementation.name,
        winner.finalist.implementation.default,
        winner.timing.median_s,
    )
    over_default = None
    others: dict[str, tuple[str, Config, float]] = {}
    for item in standing:
        other = item.finalist
        if other.implementation.name != name:
            others.setdefault(
                other.implementation.name, (other.implementation.name, other.config, item.timing.median_s / median_s)
            )
        elif other.config == default:
            over_default = median_s / item.timing.median_s
    for other in sorted((item for item in beyond if item.timing is not None), key=lambda item: item.seconds):
        others.setdefault(
            other.implementation.name, (other.implementation.name, other.config, other.seconds / median_s)
        )
    path = choices_path(job.operator, detect(job.options.device).name)
    if write:
        scalars = job.workload.scalars
        form, kind = job.operator.compute_dtype_of(job.dtype, scalars), job.operator.kind_of_call(scalars)
        keep(
            path,
            record,
            over_default=over_default,
            trials=sum(job.counts.values()),
            failed=job.counts[FAILED],
            factors=form,
            kind=kind,
        )
    why = f"kept in {path}" if write else "not kept: a dry run"
    return _tuned(job, why, record=record, over_default=over_default, others=tuple(others.values()), kept=write)


def _tuned(
    job: Job,
    why: str,
    *,
    record: Record | None = None,
    over_default: float | None = None,
    others: tuple[tuple[str, Config, float], ...] = (),
    kept: bool = False,
) -> Tuned:
    return Tuned(
        operator=job.operator.name,
        workload=job.workload.name,
        dtype=job.dtype,
        record=record,
        over_default=over_default,
        others=others,
        timed=job.counts[TIMED],
        slower=job.counts[SLOWER],
        same_code=job.counts[SAME_CODE],
        failed=job.counts[FAILED],
        resumed=job.resumed,
        refused=job.refused,
        kept=kept,
        why=why,
    )
