"""The job: for each workload and dtype, try the default of each implementation, search around those that are within
reach of the fastest, let the best of each meet, and keep the winner.

A point is bound to the workload in a process of its own. Where it is right there, and not hopelessly slower than the
incumbent (the best point until then, whose process lives on), it is verified on a selection of the operator's cases and
timed interleaved with that one. Before the winner is kept it is verified with all cases, and its time audited, as a
bench does it.

Beside a GPU compilers work for all searches from the beginning, the one under way first.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress

from opforge.backends import backend
from opforge.core import units
from opforge.core.errors import UsageError
from opforge.core.operator import Case, Operator, Workload
from opforge.core.own_shapes import workload_named
from opforge.core.record import Record
from opforge.machine import detect, environment
from opforge.registry import Registry
from opforge.registry.tuned_choices import choices_path, ensure_usable
from opforge.runner import Host
from opforge.trial import Clock, Setting, ensure_adequate, leave
from opforge.tuning.codes import CompiledCode
from opforge.tuning.compile_queue import LATER, NOW, Compilers, beside_kernels, default_jobs
from opforge.tuning.final import add_previous, hold_final
from opforge.tuning.job import Job, Passed
from opforge.tuning.outcomes import Trial, Tuned, TuneOptions
from opforge.tuning.requalify import requalify
from opforge.tuning.resume import resume
from opforge.tuning.space import Space, compile_ahead, search_space, spaces_of, within_reach
from opforge.verify import CaseCache

FINAL_SHARE = 0.2
"""Of a workload's share of the time limit, what is left for the final and the winner's verification."""

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
) -> Iterator[Tuned]:
    """A Tuned for every dtype × workload of an operator, as they are found.

    add     gets the Record of every trial, failures and points with known code too
    write   False leaves `tuned/<device>.json` as it is
    stop    asked between points; once it says True no more are begun, and what was found until then is verified and
            kept
    earlier records of the operator from anywhere: what they say of a space is where its search begins
    Raises UsageError for unknown names, and where the choices cannot be read or written.
    """
    operator = registry.operator(name)
    ensure_adequate(operator)
    ensure_usable(choices_path(operator, detect(options.device).name), written=write)
    cases = CaseCache(
        registry=registry, operator=operator, host=host, device=options.device, run_limit_s=options.hang_s
    )
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
        _plan(planned, 0, registry, operator, todo, options, compilers, earlier)()
        _start_servers(host, {space.implementation.backend for space in planned[0].result()}, options.device)
    try:
        for place, (dtype, workload) in enumerate(todo):
            now = time.monotonic()
            left = float("inf") if options.limit_s is None else began + options.limit_s - now
            if stop():
                return
            if left <= 0:
                yield _not_begun(operator, workload, dtype, f"not begun: the limit of {options.limit_s:g} s had passed")
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
            job = Job(
                registry=registry,
                operator=operator,
                options=options,
                setting=Setting(
                    cases=cases,
                    pool=cases.workers(),
                    prepared=cases.prepare(case, dtype),
                    clock=clock,
                    limit_s=options.hang_s,
                ),
                environment=here,
                run=run,
                workload=workload,
                dtype=dtype,
                add=add,
                listener=listener,
                stop=stop,
                compilers=compilers,
                began=began,
                until=now + left / (len(todo) - place),
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
    finalists: list[Passed] = []
    try:
        for space in spaces:
            resume(job, space, finalists)
            search_space(job, space, 0.0, finalists)
        near, far = within_reach({space.implementation.name: space.seconds for space in spaces})
        known = {space.implementation.name: space for space in spaces}
        if beside_kernels(job.options.device):
            for name in near:
                compile_ahead(job, known[name], known[name].search.planned(), NOW)
        for names in (near, far):
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
            if space.journal is not None and space.search.given >= space.search.trials:
                space.journal.finish()
        return outcome
    finally:
        for space in spaces:
            if space.journal is not None:
                space.journal.close()
        leave(job.setting, [item.ready for item in finalists])


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


def _start_servers(host: Host, backends: Iterable[str], device: str) -> None:
    """Have the servers import their toolchains, all at once, while inputs are drawn and compilers work."""

    def start(name: str) -> None:
        with suppress(Exception):  # whoever needs a worker is told what is wrong
            host.worker(backend(name).environment(device)).close()

    for name in sorted(backends):
        threading.Thread(target=start, args=(name,), daemon=True).start()
