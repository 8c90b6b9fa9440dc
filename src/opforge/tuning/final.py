"""The final of a tuning: the best of each implementation interleaved. The fastest is verified with all cases and
audited as a bench does it; then it is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opforge.core.definition.implementation import Config
from opforge.core.evidence.comparison import FASTER
from opforge.core.evidence.record import Record
from opforge.core.evidence.timing import Timing
from opforge.core.evidence.verdict import Broken, Checked, Mismatch, Pass, Verdict
from opforge.machine import detect
from opforge.registry.tuned_choices import Chosen, choices_path, chosen, give_way, keep
from opforge.runner.wire.messages import Failure, Run
from opforge.timing import Candidate
from opforge.timing.paired_statistics import Rule, compare
from opforge.trial import believed, check, far_values, on_the_workload, unseen_contents
from opforge.tuning.compiled_cases import compile_cases
from opforge.tuning.finalists import attempt_at, park, revived
from opforge.tuning.job import JITS, Job, Passed
from opforge.tuning.outcomes import FAILED, SAME_CODE, SLOWER, TIMED, Tuned, TuneOptions, explained
from opforge.tuning.room import NoRoom, patiently, shortage
from opforge.tuning.space import eligible, none_eligible, within_reach
from opforge.tuning.strategies import Objectives, pareto_front, weighted_scores
from opforge.tuning.weighing import over
from opforge.verify import BRIEF, judge
from opforge.verify.judging.threads import give_back

FINAL_SAMPLES = 3.0
"""The final is measured so many times as long as a trial."""

TIE = Rule(looks=(1,))
"""What was there is replaced by who is surely more than 1 % faster: 99 % confidence, one look."""

FRONT = 1.1
"""Who took so many times as long as the fastest may still turn out to be faster in the final."""

GREEDY = 0.25
"""Who takes so much of a device's memory beside its operands is chosen where nobody else passes: a caller has something
there too. (attention's gradient of 16384 keys in float32 takes 193 ms and 83 GiB by its definition, 399 ms and 1 GiB by
ours.)"""

LEAST_PAIRS = 5
"""Fewer samples bear no interval: medians that differ by the band decide."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A finalist that was timed in the final."""

    finalist: Passed
    candidate: Candidate
    timing: Timing


def add_previous(job: Job, finalists: list[Passed]) -> None:
    """What had been chosen before takes part in the final, where it is not among the finalists: it is replaced only if
    it is beaten.
    """
    old = former_choice(job)
    if old is None or any(
        item.implementation.name == old.implementation and item.config.as_dict() == old.config.as_dict()
        for item in finalists
    ):
        return
    known = {
        item.name: item
        for item in eligible(
            job.registry, job.operator, job.workload, job.dtype, TuneOptions(device=job.options.device)
        )
    }
    implementation = known.get(old.implementation)
    if implementation is None or set(old.config.as_dict()) != set(implementation.default.as_dict()):
        return  # it was chosen among the parameters of another version
    passed = attempt_at(job, implementation, old.config)
    if passed is not None:
        finalists.append(passed)


def former_choice(job: Job) -> Chosen | None:
    """What had been chosen for this workload and dtype on this device; None where nothing was."""
    operator, scalars = job.operator, job.workload.scalars
    form = operator.compute_dtype_of(job.dtype, scalars)
    device = detect(job.options.device).name
    return chosen(operator, device, form, job.workload.axes, operator.kind_of_call(scalars))


def hold_final(job: Job, finalists: list[Passed], write: bool, among: Sequence[Passed] | None = None) -> Tuned:
    """All finalists within reach interleaved, with the defaults of those in front; the fastest that passes every case,
    and whose time is believed, is kept. A tie keeps what was there.
    Where none of them is, the defaults of those that failed, and those beyond, have a final of their own: slow and
    right is a choice, fast and wrong is none.

    among   of the finalists, who take part; None: all. Whoever is bound meanwhile is put among the finalists
    """
    if job.untried and time.monotonic() >= job.until:
        # nothing would be kept, and verifying and auditing the winner takes as long as the search
        return _tuned(job, _not_kept(job))
    parts = list(finalists if among is None else among)
    parts += _defaults(job, parts, finalists)
    seconds_of: dict[str, float] = {}
    for item in parts:
        if item.timing is not None:
            seconds_of[item.implementation.name] = min(
                item.seconds, seconds_of.get(item.implementation.name, float("inf"))
            )
    weights = job.options.weights
    # what costs more time may cost less in all
    _, far = within_reach(seconds_of) if not weights else ([], [])
    beyond = [item for item in parts if item.implementation.name in far]
    near = [item for item in parts if item.implementation.name not in far]
    for item in beyond if job.setting.pool.kept else ():
        park(job, item)
    timed = job.measure(near, FINAL_SAMPLES)
    standing = sorted(
        (
            Standing(finalist=item, candidate=candidate, timing=timing)
            for item, (candidate, timing) in zip(near, timed, strict=True)
            if isinstance(timing, Timing)
        ),
        key=lambda item: item.timing.median_s,
    )
    ahead = surely_faster
    if weights:
        costs = {id(item.timing): job.costs(item.timing, item.finalist.proof) for item in standing}
        scores = weighted_scores([costs[id(item.timing)] for item in standing], weights)
        order = sorted(range(len(standing)), key=lambda place: -scores[place])
        standing = [standing[place] for place in order]

        def ahead(one: Timing, other: Timing) -> bool:
            return over(costs[id(one)], costs[id(other)], weights) * (1 + TIE.band) < 1

    last = [] if weights else greedy(standing, detect(job.options.device).memory_bytes)
    for first in [*ties_kept([item for item in standing if item not in last], _there(job), ahead), *last]:
        try:
            verdict = _judged(job, first)
        except NoRoom as error:
            # those behind are no better choice for that
            job.untried[first.finalist.implementation.name] = f"the device had no room for it ({error})"
            break
        record = job.record(first.finalist.implementation, first.finalist.config, verdict, first.timing, trial=False)
        if record.timing is not None and record.timing.suspect is None:
            return _kept(job, record, first, standing, beyond, write)
        first.finalist.failed = True
        beyond += _default(job, first.finalist, finalists)
    if beyond and not job.untried:
        again = [passed for item in beyond if (passed := revived(job, item, finalists)) is not None]
        if again:
            return hold_final(job, finalists, write, again)
    if job.untried:
        return _tuned(job, _not_kept(job))
    why = (
        "no point passed"
        if sum(job.counts.values())
        else none_eligible(job.registry, job.operator, job.workload, job.dtype, job.options)
    )
    return _tuned(job, f"{why}; see: opforge verify {job.operator.name}")


def _defaults(job: Job, parts: Sequence[Passed], finalists: list[Passed]) -> list[Passed]:
    """The defaults of those in front, bound once more: what was found is held against them, and a tie is theirs."""
    best_s = min((item.seconds for item in parts), default=0.0)
    front = [item for item in parts if job.options.weights or item.seconds <= FRONT * best_s]
    return [default for item in front for default in _default(job, item, finalists)]


def _default(job: Job, item: Passed, finalists: list[Passed]) -> list[Passed]:
    """The default of a finalist's implementation, where it is another point and none of the finalists."""
    name, default = item.implementation.name, item.implementation.default
    if any(other.implementation.name == name and other.config.as_dict() == default.as_dict() for other in finalists):
        return []
    passed = attempt_at(job, item.implementation, default)
    if passed is None:
        return []
    finalists.append(passed)
    return [passed]


def ties_kept(
    standing: Sequence[Standing],
    there: tuple[str, Config] | None,
    ahead_of: Callable[[Timing, Timing], bool] | None = None,
) -> list[Standing]:
    """The finalists, best first, but for what was there: it comes before all who are not surely better than it.

    there   the former choice; None: the default of whoever stands first, which is what calls got until now
    ahead_of   whether the first of two timings is surely better; default: surely_faster
    """
    if not standing:
        return []
    front = standing[0].finalist.implementation
    name, config = there or (front.name, front.default)
    keeper = next(
        (
            item
            for item in standing
            if item.finalist.implementation.name == name and item.finalist.config.as_dict() == config.as_dict()
        ),
        None,
    )
    if keeper is None:
        return list(standing)
    better = ahead_of or surely_faster
    ahead = [item for item in standing if item is not keeper and better(item.timing, keeper.timing)]
    return [*ahead, keeper, *(item for item in standing if item is not keeper and item not in ahead)]


def greedy(standing: Sequence[Standing], memory_bytes: int) -> list[Standing]:
    """Those that take more of a device's memory beside their operands than GREEDY; nobody where it is not known."""
    most = GREEDY * memory_bytes or float("inf")
    return [item for item in standing if (item.timing.extra_bytes or 0) > most]


def surely_faster(one: Timing, other: Timing) -> bool:
    """Whether two timings that were taken interleaved are no tie (TIE), the first the faster."""
    pairs = min(len(one.samples_s), len(other.samples_s))
    if pairs < LEAST_PAIRS:
        return one.median_s * (1 + TIE.band) < other.median_s
    told = compare("one", "other", one.samples_s[:pairs], other.samples_s[:pairs], rule=TIE)
    return told.outcome == FASTER


def _there(job: Job) -> tuple[str, Config] | None:
    """The former choice, which keeps its place in a tie; one that was made of unsteady times has none to keep."""
    old = former_choice(job)
    return None if old is None or old.unsure else (old.implementation, old.config)


def _judged(job: Job, first: Standing) -> Verdict:
    """What is said of who stands first. Raises NoRoom."""
    short = shortage(job.options.device)
    return patiently(
        lambda: _asked(job, first),
        lambda verdict: explained(verdict) if short(verdict) else None,
        relief=job.make_room,
        end=lambda: job.stop() or time.monotonic() >= job.until,
    )


def _asked(job: Job, first: Standing) -> Verdict:
    """It is verified with all cases, and its time audited."""
    finalist, candidate = first.finalist, first.candidate
    key = (finalist.implementation.name, finalist.config)
    verdict: Verdict | None = job.proofs.full.get(key)
    if verdict is None:
        if finalist.implementation.backend in JITS and job.setting.pool.kept:
            compile_cases(job.setting, finalist.implementation, job.dtype, finalist.config)
        verdict = check(job.setting.cases, finalist.implementation, job.dtype, BRIEF, finalist.config)
    if not isinstance(verdict, Pass):
        return verdict
    job.proofs.full.setdefault(key, verdict)
    with job.room():
        if job.large:
            # graphs lie there since the final, and are captured again where the audit asks for one
            job.make_room()
        verdict = on_the_workload(finalist.implementation, verdict, _checked(job, finalist, candidate))
        if isinstance(verdict, Pass):
            candidate.proof = verdict
            far = far_values(job.setting)
            verdict = believed(job.setting, candidate, first.timing, unseen_contents(job.setting), far)
        if job.setting.prepared.place.type != "cpu":
            give_back()
    return verdict


def _checked(job: Job, finalist: Passed, candidate: Candidate) -> Checked | Mismatch | Broken:
    """What the workload's own check found, with its error, which is measured now where it was not."""
    assert isinstance(finalist.proof, Pass)
    found = finalist.proof.checked[-1]
    if found.metrics or job.setting.measured:
        return found
    prepared, isolation = job.setting.prepared, job.setting.isolation
    prepared.reset()
    answer = candidate.ask(Run(launch=finalist.ready.launch))
    if isinstance(answer, Failure):
        reason = f"after timing: {answer.reason}"
        return Broken(case=prepared.case, dtype=prepared.dtype, reason=reason, isolation=isolation)
    return judge(prepared, job.operator, isolation)


def _not_kept(job: Job) -> str:
    """Why nothing is chosen where some were not tried: one of them may be better."""
    told = "; ".join(f"{name} was not tried: {why}" for name, why in job.untried.items())
    return f"not kept: {told}. Run it again, or with more time"


def _kept(
    job: Job, record: Record, winner: Standing, standing: Sequence[Standing], beyond: Sequence[Passed], write: bool
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
    path = choices_path(job.operator, detect(job.options.device).name, into_package=job.options.into_package)
    write = write and not job.untried
    unsure = not any(item.timing.steady for item in standing)
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
            unsure=unsure,
        )
        give_way(job.operator, record, path, factors=form, kind=kind)
    doubt = " as unsure: every time of the final was unsteady; the next search tries it first" if unsure else ""
    why = f"kept in {path}{doubt}" if write else _not_kept(job) if job.untried else "not kept: a dry run"
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
        front=_front(job),
    )


def _front(job: Job) -> tuple[tuple[str, Config, Objectives], ...]:
    return tuple(job.tried[place] for place in pareto_front([cost for *_, cost in job.tried]))
