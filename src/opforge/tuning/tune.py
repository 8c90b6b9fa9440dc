"""The job: for each workload and dtype, try the default of each implementation, search around those that are within
reach of the fastest, let the best of each meet, and keep the winner.

A point is bound to the workload in a process in which no other point lives, and timed interleaved with the incumbent
(the best point until then, whose process lives on) where it is right there. One that would take the incumbent's place
is verified on a selection of the operator's cases. Before the winner is kept it is verified with all cases, and its
time audited, as a bench does it.

Beside a GPU compilers work for all searches from the beginning, the one under way first, and what they have done is
measured before what they have not. What finds no room on a device that others use too is asked again.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext

from opforge.core.definition.operator import Case, Operator, Workload
from opforge.core.definition.own_shapes import workload_named
from opforge.core.evidence.record import Record
from opforge.core.evidence.verdict import Pass
from opforge.core.language import units
from opforge.core.language.errors import UsageError
from opforge.machine import detect, environment
from opforge.registry import Registry
from opforge.registry.tuned_choices import choice_files, choices_path, ensure_usable
from opforge.runner import Host
from opforge.trial import Clock, Setting, ensure_adequate, leave
from opforge.trial.verified_before import VerifiedKey
from opforge.tuning.codes import CompiledCode
from opforge.tuning.compile_queue import LATER, NOW, Compilers, beside_kernels, default_jobs
from opforge.tuning.device_lock import alone_on
from opforge.tuning.final import add_previous, former_choice, hold_final
from opforge.tuning.finalists import park, revived
from opforge.tuning.job import Job, Passed, Proofs
from opforge.tuning.outcomes import Trial, Tuned, TuneOptions
from opforge.tuning.requalify import requalify
from opforge.tuning.resume import resume
from opforge.tuning.room import NoRoom, patiently
from opforge.tuning.space import Space, compile_ahead, eligible, search_space, spaces_of, within_reach
from opforge.tuning.workers import SearchWorkers
from opforge.verify import CaseCache, PreparedCase
from opforge.verify.judging.threads import give_back

FINAL_SHARE, FINAL_S, MOST_SHARE = 0.2, 6.0, 0.4
"""Of a workload's share of the time limit, what is left for the final and the winner's verification: a part, and so
many seconds at least, but no more than another part.
"""
LOOK_S = 0.02
"""How often compilers are looked at where everything waits for them."""

TrialListener = Callable[[Trial], None]


def tune(
    registry: Registry,
    name: str,
    options: TuneOptions,
    host: Host,
    *,
    add: Callable[[Record], None],
    listener: TrialListener = lambda trial: None,
    write: bool = True,
    stop: Callable[[], bool] = lambda: False,
    earlier: Sequence[Record] = (),
    proven: Mapping[VerifiedKey, Pass] | None = None,
) -> Iterator[Tuned]:
    """A Tuned for every dtype × workload of an operator, as they are found.

    add     gets the Record of every trial, failures and points with known code too
    write   False leaves the choices as they are
    stop    asked between points; once it says True no more are begun, and what was found until then is verified and
            kept
    earlier records of the operator from anywhere: what they say of a space is where its search begins
    proven  verifications of defaults that stand (trial.verified_before)
    Raises UsageError for unknown names, and where the choices cannot be read or written.
    """
    operator = registry.operator(name)
    ensure_adequate(operator)
    device = detect(options.device).name
    for path in choice_files(operator, device):
        ensure_usable(path, written=False)
    ensure_usable(choices_path(operator, device, into_package=options.into_package), written=write)
    pool = SearchWorkers(host=host, device=options.device, kept=options.device != "cpu")
    cases = CaseCache(
        registry=registry, operator=operator, host=host, device=options.device, run_limit_s=options.hang_s, pool=pool
    )
    proofs: defaultdict[str, Proofs] = defaultdict(Proofs)
    for (of, item, dtype), proof in (proven or {}).items():
        if of == name:
            proofs[dtype].full[item, registry.implementation(name, item).default] = proof
    clock = Clock(device=options.device)
    here = environment(options.device, operator.folder)
    run = f"tune-{uuid.uuid4().hex[:8]}"
    compilers = Compilers(options.jobs or default_jobs(options.device))
    began = time.monotonic()
    todo = _todo(operator, options)
    planned: dict[int, Future[list[Space]]] = {}
    if todo and beside_kernels(options.device) and not options.requalify:
        # compilers are given the workload after the one under way as well: none of them waits while the other's last
        # points are measured
        planned = {place: Future() for place in range(len(todo))}
        pool.start(eligible(registry, operator, todo[0][1], todo[0][0], options))
        _plan(planned, 0, registry, operator, todo, options, compilers, earlier)()
    try:
        for place, (dtype, workload) in enumerate(todo):
            now = time.monotonic()
            left = float("inf") if options.limit_s is None else began + options.limit_s - now
            if stop():
                return
            if left <= 0:
                yield _not_begun(operator, workload, dtype, "not begun: the time limit had passed")
                continue
            if place + 1 < len(planned):
                compilers.submit(_plan(planned, place + 1, registry, operator, todo, options, compilers, earlier), NOW)
            case = Case(
                name=workload.name,
                axes=workload.axes,
                why=workload.source,
                scalars=workload.scalars,
                layout=workload.layout,
            )
            share_s = left / (len(todo) - place)
            until = now + share_s
            try:
                prepared = _prepared(cases, case, dtype, until, stop)
            except NoRoom as error:
                yield _not_begun(operator, workload, dtype, f"not begun: there was no room for it ({error})")
                continue
            large = prepared.place.type != "cpu"
            if large:
                give_back()
            job = Job(
                registry=registry,
                operator=operator,
                options=options,
                setting=Setting(
                    cases=cases,
                    pool=pool,
                    prepared=prepared,
                    clock=clock,
                    limit_s=options.hang_s,
                    measured=not large or options.weights.get("error", 0.0) > 0,
                ),
                environment=here,
                run=run,
                workload=workload,
                dtype=dtype,
                add=add,
                listener=listener,
                stop=stop,
                compilers=compilers,
                proofs=proofs[dtype],
                began=began,
                search_until=until - _final_s(share_s) if options.limit_s else until,
                defaults_until=now + left - FINAL_S * (len(todo) - place),
                until=until,
            )
            try:
                if options.requalify:
                    if (again := requalify(job, earlier, write)) is not None:
                        yield again
                    continue
                spaces = (
                    planned[place].result()
                    if planned
                    else spaces_of(registry, operator, workload, dtype, options, compilers, earlier)
                )
                yield _tune_workload(job, spaces, write)
            finally:
                cases.forget(case)
    finally:
        pool.close()
        cases.close()
        compilers.close()


def compile_first(registry: Registry, name: str, options: TuneOptions) -> tuple[int, int]:
    """Compile the points that `tune` with the same options would try whatever it measured, into the caches that it
    looks in: how many
    compiled, of how many. No kernel runs."""
    operator = registry.operator(name)
    compilers = Compilers(options.jobs or default_jobs("cuda"))
    try:
        spaces = [
            space
            for dtype, workload in _todo(operator, options)
            for space in spaces_of(registry, operator, workload, dtype, options, compilers)
        ]
        for space in spaces:
            space.codes.ahead(space.search.planned(), LATER)
        codes = [space.codes.of(config) for space in spaces for config in space.search.planned()]
        return sum(isinstance(code, CompiledCode) for code in codes), len(codes)
    finally:
        compilers.close()


def _final_s(share_s: float) -> float:
    """What of a workload's share, in seconds, its final gets."""
    return max(FINAL_SHARE * share_s, min(FINAL_S, MOST_SHARE * share_s))


def _prepared(cases: CaseCache, case: Case, dtype: str, until: float, stop: Callable[[], bool]) -> PreparedCase:
    """A workload's memory and truth, which one search at a time works out on a device. Raises NoRoom."""

    def prepare() -> PreparedCase:
        with alone_on(cases.device, "-room") if cases.device != "cpu" else nullcontext():
            return cases.prepare(case, dtype)

    return patiently(
        prepare,
        lambda prepared: None,
        relief=give_back,
        end=lambda: stop() or time.monotonic() >= until,
    )


def _not_begun(operator: Operator, workload: Workload, dtype: str, why: str) -> Tuned:
    nothing = dict.fromkeys(("timed", "slower", "same_code", "failed", "resumed", "refused"), 0)
    return Tuned(
        operator=operator.name,
        workload=workload.name,
        dtype=dtype,
        record=None,
        over_default=None,
        others=(),
        kept=False,
        why=why,
        front=(),
        **nothing,
    )


def _todo(operator: Operator, options: TuneOptions) -> list[tuple[str, Workload]]:
    """The dtypes and workloads that are asked for, where the operator takes one in the other. Raises UsageError where
    it has none of them.
    """
    dtypes = [dtype for dtype in operator.dtypes if not options.dtypes or dtype in options.dtypes]
    if not dtypes:
        raise UsageError(
            f"{operator.name}: nothing is defined for {', '.join(options.dtypes)}. Choose from: "
            f"{', '.join(operator.dtypes)}."
        )
    workloads = _workloads(operator, options)
    if not workloads:
        known = units.listed([workload.name for workload in operator.workloads])
        raise UsageError(
            f"{operator.name} has no workload that is sized for {options.device}. It has: {known}. Name one with "
            "--workload, or add one to its op.py."
        )
    return [(dtype, workload) for dtype in dtypes for workload in workloads if operator.takes(workload, dtype)]


def _workloads(operator: Operator, options: TuneOptions) -> tuple[Workload, ...]:
    if options.workloads:
        named = (workload_named(operator, name) for name in dict.fromkeys(options.workloads))
        return tuple(workload for workload in named if workload is not None)
    scale = "laptop" if options.device == "cpu" else "gpu"
    return tuple(workload for workload in operator.workloads if workload.scale == scale)


def _tune_workload(job: Job, spaces: Sequence[Space], write: bool) -> Tuned:
    finalists = job.finalists
    beside = beside_kernels(job.options.device)
    try:
        for space in spaces:
            resume(job, space, finalists)
        if (before := former_choice(job)) is not None and before.unsure:
            add_previous(job, finalists)
        _try_defaults(job, spaces, finalists)
        near, far = within_reach({space.implementation.name: space.seconds for space in spaces})
        known = {space.implementation.name: space for space in spaces}
        if beside:
            for name in near:
                compile_ahead(job, known[name], known[name].search.planned(), NOW)
            for item in finalists if job.setting.pool.kept and not job.options.weights else ():
                if item.implementation.name in far:
                    park(job, item)
        for names in (in_time(job, near, known), in_time(job, far, known)):
            if beside:
                _take_turns(job, [known[name] for name in names], finalists)
                continue
            for place, name in enumerate(names):
                now = time.monotonic()
                search_space(
                    job, known[name], now + (job.until - now) * (1 - FINAL_SHARE) / (len(names) - place), finalists
                )
        # stopped or not: a search cut short must not put its default in the place of what was found before
        add_previous(job, finalists)
        outcome = hold_final(job, finalists, write)
        for space in spaces:
            # a search that was cut short goes on with the next run
            if space.journal is not None and space.search.given >= space.search.trials and not job.untried:
                space.journal.finish()
        return outcome
    finally:
        for space in spaces:
            if space.journal is not None:
                space.journal.close()
        held = [item for item in finalists if not item.parked]
        leave(job.setting, [item.ready for item in held], [item.ready for item in held if not item.failed])


def in_time(job: Job, names: Sequence[str], spaces: Mapping[str, Space]) -> list[str]:
    """Whose search goes on: once the time is up that of nobody whose default was not tried, since a search always
    tries its first point.
    """
    over = time.monotonic() >= job.until
    return [name for name in names if not (over and spaces[name].search.given == 0)]


def _try_defaults(job: Job, spaces: Sequence[Space], finalists: list[Passed]) -> None:
    """The default of each implementation, those first that no compiler is needed for any more; while all of the others
    are with theirs, points of those within reach. Whose turn does not come before the time is up is not tried; the
    first is in any case.
    """
    left = [space for space in spaces if not space.search.given]
    until = max(job.search_until, job.defaults_until)
    beside = beside_kernels(job.options.device)
    for space in left:
        if beside and space.waits:
            # before the points of those that need none
            compile_ahead(job, space, space.search.ahead(1), NOW)
    while left and not job.stop():
        if time.monotonic() >= until and any(space.search.given for space in spaces):
            job.untried |= {space.implementation.name: "its turn did not come before the limit" for space in left}
            return
        ready = [item for item in left if not (beside and item.waits)]
        if ready:
            left.remove(ready[0])
            search_space(job, ready[0], 0.0, finalists)
            continue
        near, _ = within_reach({item.implementation.name: item.seconds for item in spaces if item.search.given})
        _take_turn(job, [item for item in spaces if item.implementation.name in near], finalists)


def _take_turns(job: Job, spaces: Sequence[Space], finalists: list[Passed]) -> None:
    """A point of each in turn, until all are tried or the time is up."""
    left = list(spaces)
    while left and not job.stop() and time.monotonic() < job.search_until:
        for space in left:
            more = space.search.given < space.search.trials
            if more and space.incumbent is not None and space.incumbent.parked:
                space.incumbent = revived(job, space.incumbent, finalists) or space.incumbent
        left = _take_turn(
            job, [space for space in left if space.incumbent is None or not space.incumbent.parked], finalists
        )


def _take_turn(job: Job, spaces: Sequence[Space], finalists: list[Passed]) -> list[Space]:
    """A point of each, passing over those whose next point is with a compiler; after a moment, where all are. Those of
    which more can be tried.
    """
    given = sum(space.search.given for space in spaces)
    left = [space for space in spaces if search_space(job, space, job.search_until, finalists, points=1, patient=False)]
    if sum(space.search.given for space in spaces) == given:
        time.sleep(LOOK_S)
    return left


def _plan(
    planned: Mapping[int, Future[list[Space]]],
    place: int,
    registry: Registry,
    operator: Operator,
    todo: Sequence[tuple[str, Workload]],
    options: TuneOptions,
    compilers: Compilers,
    earlier: Sequence[Record],
) -> Callable[[], None]:
    """What finds the spaces of one workload and has their first points compiled."""

    def work() -> None:
        dtype, workload = todo[place]
        try:
            spaces = spaces_of(registry, operator, workload, dtype, options, compilers, earlier)
            # the defaults are measured before anything else
            for points in (slice(1), slice(1, None)):
                for space in spaces:
                    if not space.one_point:
                        space.codes.ahead(space.search.planned()[points], LATER)
            planned[place].set_result(spaces)
        except BaseException as error:  # noqa: BLE001 - it is raised where the spaces are asked for
            planned[place].set_exception(error)

    return work
