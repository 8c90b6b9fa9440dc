"""The job: for each workload and dtype, try the default of each implementation, search around those that are within reach of the fastest,
let the best of each meet, and keep the winner.

A point is bound to the workload in a process of its own. Where it is right there, and not hopelessly slower than the best
point until then, whose process lives on, it is verified on a selection of the operator's cases and timed in turns with that
one. The winner is verified with all cases before it is kept.

Beside a GPU compilers work for all searches from the beginning, the one under way first.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace

from opforge.backends import Native, backend
from opforge.core import units
from opforge.core.dtypes import DTYPES
from opforge.core.errors import UsageError
from opforge.core.implementation import COMPARED_WITH, Config, Implementation, Rejected
from opforge.core.operator import Case, Operator, Workload
from opforge.core.record import Record
from opforge.core.timing import Timing
from opforge.core.verdict import Broken, Checked, Pass, Unsupported, Verdict
from opforge.machine import detect, environment
from opforge.registry import Registry
from opforge.runner import Host
from opforge.timing.asking import asker
from opforge.tuning.choices import before, choices_path, ensure_usable, keep
from opforge.tuning.codes import Code, Codes, Refused
from opforge.tuning.compilers import LATER, NOW, Compilers, default_jobs
from opforge.tuning.job import Champion, Job, attempt, explained
from opforge.tuning.search import Search, valid_points
from opforge.tuning.trial import FAILED, SAME_CODE, SLOWER, TIMED, Options, Trial, Tuned
from opforge.verdicts import BRIEF, Bench, judge, verify
from opforge.verdicts.adequacy import require

FINAL_SAMPLES = 3.0
"""The final is measured so many times as long as a trial."""

FINAL_SHARE = 0.2
"""Of a workload's share of the time limit, what is left for the final and the winner's verification."""

REACH = 2.0
"""An implementation whose default takes so many times as long as the fastest default is searched last, with what time is left, and stays out of the final
unless the search brought it near."""

Listener = Callable[[Trial], None]


def tune(
    registry: Registry,
    name: str,
    options: Options,
    host: Host,
    *,
    add: Callable[[Record], None],
    listener: Listener = lambda trial: None,
    write: bool = True,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Tuned]:
    """A Tuned for every dtype × workload of an operator, as they are found.

    add     gets the Record of every trial, failures and points with known code too
    write   False leaves `tuned/<device>.json` as it is
    stop    asked between points; once it says True no more are begun, and what was found until then is verified and kept
    Raises UsageError for unknown names, and where the choices cannot be read or written.
    """
    operator = registry.operator(name)
    require(operator)
    ensure_usable(choices_path(operator, detect(options.device).name), written=write)
    bench = Bench(registry=registry, operator=operator, host=host, device=options.device, run_limit_s=options.hang_s)
    here = environment(options.device, operator.folder)
    run = f"tune-{uuid.uuid4().hex[:8]}"
    compilers = Compilers(options.jobs or default_jobs(options.device))
    began = time.monotonic()
    todo = _todo(operator, options)
    planned: dict[int, Future[list[_Space]]] = {}
    if todo and compilers_have_their_own_processors(options.device):
        # compilers are given the workload after the one under way as well: none of them waits while the other's last points are measured
        planned = {place: Future() for place in range(len(todo))}
        _plan(planned, 0, registry, operator, todo, options, compilers)()
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
                compilers.submit(_plan(planned, place + 1, registry, operator, todo, options, compilers), NOW)
            case = Case(name=workload.name, axes=workload.axes, why=workload.source, scalars=workload.scalars)
            job = Job(
                registry=registry,
                operator=operator,
                options=options,
                host=host,
                bench=bench,
                environment=here,
                run=run,
                workload=workload,
                dtype=dtype,
                prepared=bench.prepare(case, dtype),
                add=add,
                listener=listener,
                stop=stop,
                compilers=compilers,
                began=began,
                until=now + left / (len(todo) - place),
            )
            try:
                spaces = planned[place].result() if planned else _spaces(registry, operator, workload, dtype, options, compilers)
                yield _tune_workload(job, spaces, write)
            finally:
                bench.forget(case)
    finally:
        bench.close()
        compilers.close()


def compile_first(registry: Registry, name: str, options: Options) -> tuple[int, int]:
    """Compile the points that `tune` with the same options would try whatever it measured, into the caches that it looks in: how many
    compiled, of how many. No kernel runs."""
    operator = registry.operator(name)
    compilers = Compilers(options.jobs or default_jobs("cuda"))
    try:
        spaces = [space for dtype, workload in _todo(operator, options) for space in _spaces(registry, operator, workload, dtype, options, compilers)]
        for space in spaces:
            space.codes.ahead(space.search.planned(), LATER)
        codes = [space.codes.of(config) for space in spaces for config in space.search.planned()]
        return sum(isinstance(code, Code) for code in codes), len(codes)
    finally:
        compilers.close()


def _not_begun(operator: Operator, workload: Workload, dtype: str, why: str) -> Tuned:
    nothing = dict.fromkeys(("timed", "slower", "same_code", "failed"), 0)
    return Tuned(operator=operator.name, workload=workload.name, dtype=dtype, record=None, over_default=None, others=(), kept=False, why=why, **nothing)


def _todo(operator: Operator, options: Options) -> list[tuple[str, Workload]]:
    """The dtypes and workloads that are asked for, where the operator takes one in the other. Raises UsageError where it has none of them."""
    dtypes = [dtype for dtype in operator.dtypes if not options.dtypes or dtype in options.dtypes]
    if not dtypes:
        raise UsageError(f"{operator.name}: nothing is defined for {', '.join(options.dtypes)}. Choose from: {', '.join(operator.dtypes)}.")
    workloads = _workloads(operator, options)
    if not workloads:
        known = units.listed([workload.name for workload in operator.workloads])
        raise UsageError(f"{operator.name} has no workload that is sized for {options.device}. It has: {known}. Name one with --workload, or add one to its op.py.")
    return [(dtype, workload) for dtype in dtypes for workload in workloads if operator.takes(workload, dtype)]


def _workloads(operator: Operator, options: Options) -> tuple[Workload, ...]:
    scale = "laptop" if options.device == "cpu" else "gpu"
    return tuple(workload for workload in operator.workloads if (workload.name in options.workloads if options.workloads else workload.scale == scale))


def candidates(registry: Registry, operator: Operator, workload: Workload, dtype: str, options: Options) -> list[Implementation]:
    """The implementations that run natively on the device, were asked for, and take the workload. What is only there to be compared with is no choice of dispatch."""
    found = []
    for item in registry.implementations(operator.name):
        asked = (not options.implementations or item.name in options.implementations) and (not options.backends or item.backend in options.backends)
        if not asked or item.backend in COMPARED_WITH or not isinstance(backend(item.backend).way(options.device), Native):
            continue
        if not isinstance(item.accepts(workload.axes, dtype, operator.scalar_values(workload.scalars)), Rejected):
            found.append(item)
    return found


@dataclass(kw_only=True)
class _Space:
    """One implementation's part of the work: its search, the code of its points, and how far the search has come.

    seen      the first point with each code
    unknown   a point that was tried before its code was known
    """

    implementation: Implementation
    search: Search
    codes: Codes
    one_point: bool
    seen: dict[str, Config] = field(default_factory=dict)
    unknown: Config | None = None
    best: Champion | None = None

    @property
    def seconds(self) -> float:
        """The time of its best point until now; infinite where none passed."""
        return self.best.timing.median_s if self.best is not None and self.best.timing is not None else float("inf")


def _tune_workload(job: Job, spaces: Sequence[_Space], write: bool) -> Tuned:
    champions: list[Champion] = []
    try:
        for space in spaces:
            _search(job, space, 0.0, champions)
        near, far = within_reach({space.implementation.name: space.seconds for space in spaces})
        known = {space.implementation.name: space for space in spaces}
        if compilers_have_their_own_processors(job.options.device):
            for name in near:
                _compile_ahead(job, known[name], known[name].search.planned(), NOW)
        for names in (near, far):
            for place, name in enumerate(names):
                now = time.monotonic()
                _search(job, known[name], now + (job.until - now) * (1 - FINAL_SHARE) / (len(names) - place), champions)
        # stopped or not: a search cut short must not put its default in the place of what was found before
        _previous(job, champions)
        return _final(job, champions, write)
    finally:
        for champion in champions:
            champion.worker.close()


def within_reach(seconds: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """The names in the order of their times, those within REACH of the least apart from the others."""
    names = sorted(seconds, key=lambda name: seconds[name])
    near = [name for name in names if seconds[name] <= REACH * seconds[names[0]] < float("inf")]
    return near, names[len(near) :]


def _spaces(registry: Registry, operator: Operator, workload: Workload, dtype: str, options: Options, compilers: Compilers) -> list[_Space]:
    scalars = operator.scalar_values(workload.scalars)
    found = []
    for implementation in candidates(registry, operator, workload, dtype, options):
        points, _ = valid_points(implementation, workload.axes, dtype, DTYPES[dtype].itemsize, scalars)
        search = Search(points, options.trials, random.Random(f"{options.seed} {implementation.name} {workload.name} {dtype}"))
        codes = Codes(registry, implementation, workload.axes, dtype, scalars, options.device, detect(options.device).target, compilers)
        found.append(_Space(implementation=implementation, search=search, codes=codes, one_point=len(points) == 1))
    return found


def _plan(
    planned: Mapping[int, Future[list[_Space]]], place: int, registry: Registry, operator: Operator, todo: Sequence[tuple[str, Workload]], options: Options, compilers: Compilers
) -> Callable[[], None]:
    """What finds the spaces of one workload and has their first points compiled."""

    def work() -> None:
        dtype, workload = todo[place]
        try:
            spaces = _spaces(registry, operator, workload, dtype, options, compilers)
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


def _search(job: Job, space: _Space, until: float, champions: list[Champion]) -> None:
    """Go on with one implementation's search: its fastest point that passed is put among the champions, and its default, which the final holds it against.
    After `until` no point is begun but the first."""
    implementation, search, codes = space.implementation, space.search, space.codes
    beside = compilers_have_their_own_processors(job.options.device)

    def enough() -> bool:
        return job.stop() or (search.given > 0 and time.monotonic() >= until)

    def given_up() -> bool:
        return job.stop() or (search.given > 1 and time.monotonic() >= until)

    def half() -> float:
        """Where compilers and kernels want the same processors, half of the time that is left is the compilers'."""
        now = time.monotonic()
        return now + (until - now) / 2 if search.given else float("inf")

    if not enough():
        _compile_ahead(job, space, search.planned() if search.given else search.planned()[:1], LATER, half())
    while not enough():
        if space.best is not None and len(search.planned()) <= (job.compilers.jobs // 2 if beside else 0):
            # who is near the best is compiled while what is left of the sample is measured
            _compile_ahead(job, space, search.near(space.best.config)[: search.trials - search.given - len(search.planned())], NOW, half())
        config = search.next(space.best.config if space.best else None, codes.known if beside else lambda config: True)
        if config is None:
            break
        code: Code | Refused | None = None
        if beside and search.given == 1 and not codes.known(config):
            space.unknown = config  # it is tried whatever its code is
        elif not space.one_point:
            # a compiler that is given up goes on: beside the final on a CPU it would be timed with it
            code = codes.of(config, given_up if beside else job.stop)
            if not codes.known(config):
                break  # the end came before the compiler's
        if space.unknown is not None and codes.known(space.unknown) and isinstance(late := codes.of(space.unknown), Code):
            space.seen.setdefault(late.sha256, space.unknown)
        challenger: Champion | None = None
        ratio: float | None = None
        if isinstance(code, Refused):
            verdict = Broken(case=job.prepared.case, dtype=job.dtype, reason=code.reason, isolation=job.host.isolation)
            outcome, reason, code = FAILED, explained(verdict), None
            record = job.record(implementation, config, verdict, None)
        elif code is not None and code.sha256 in space.seen:
            outcome, reason = SAME_CODE, f"the compiler makes what it made of [{space.seen[code.sha256]}]"
            record = job.record(implementation, config, Unsupported(reason=f"not measured again: {reason}"), None)
        else:
            if code is not None:
                space.seen[code.sha256] = config
            found = attempt(job, implementation, config, space.best)
            challenger, ratio, outcome, reason = found.champion, found.ratio, found.outcome, found.reason
            record = job.record(implementation, config, found.verdict, challenger.timing if challenger else None, code)
        job.tell(record, outcome, reason, ratio, code, (search.given, search.trials))
        if challenger is not None:
            _admit(space, challenger, ratio, champions)


def _admit(space: _Space, challenger: Champion, ratio: float | None, champions: list[Champion]) -> None:
    """Among the champions in the best one's place, beside it where that is the default, or not at all."""
    best = space.best
    if best is None:
        champions.append(challenger)
    elif ratio is None or ratio >= 1:
        challenger.worker.close()
        return
    elif best.config == space.implementation.default:
        champions.append(challenger)
    else:
        champions[champions.index(best)] = challenger
        best.worker.close()
    space.best = challenger


def compilers_have_their_own_processors(device: str) -> bool:
    """Whether compilers may work while kernels are timed: on a CPU they would take the cores that the kernels run on."""
    return device != "cpu"


def _compile_ahead(job: Job, space: _Space, configs: Sequence[Config], urgency: int, until: float = float("inf")) -> None:
    """Hand the points to the compilers. On a CPU wait for them, because nothing may be timed beside them, and begin none after `until`."""
    if space.one_point:
        return
    if compilers_have_their_own_processors(job.options.device):
        space.codes.ahead(configs, urgency)
        return
    for start in range(0, len(configs), job.compilers.jobs):
        if job.stop() or time.monotonic() >= until:
            return
        together = configs[start : start + job.compilers.jobs]
        space.codes.ahead(together, urgency)
        for config in together:
            space.codes.of(config, job.stop)


def _previous(job: Job, champions: list[Champion]) -> None:
    """What had been chosen before takes part in the final, where it is not among the champions: it is replaced only if it is beaten."""
    form = job.operator.format_of_factors(job.dtype, job.workload.scalars)
    old = before(choices_path(job.operator, detect(job.options.device).name), form, job.workload.axes, job.operator.kind_of_call(job.workload.scalars))
    if old is None or any(item.implementation.name == old.implementation and item.config.as_dict() == old.config for item in champions):
        return
    known = {item.name: item for item in candidates(job.registry, job.operator, job.workload, job.dtype, Options(device=job.options.device))}
    implementation = known.get(old.implementation)
    if implementation is None or set(old.config) != set(implementation.default.as_dict()):
        return  # it was chosen among the parameters of another version
    challenger = attempt(job, implementation, Config(tuple(old.config.items())), None).champion
    if challenger is not None:
        champions.append(challenger)


def _final(job: Job, champions: list[Champion], write: bool) -> Tuned:
    """All champions within reach in turns; the fastest that passes every case, and is right on new inputs after it was timed, is kept.
    Where none of them is, those beyond have a final of their own: slow and right is a choice, fast and wrong is none."""
    seconds_of: dict[str, float] = {}
    for champion in champions:
        if champion.timing is not None:
            name = champion.implementation.name
            seconds_of[name] = min(champion.timing.median_s, seconds_of.get(name, float("inf")))
    _, far = within_reach(seconds_of)
    beyond = [champion for champion in champions if champion.implementation.name in far]
    champions = [champion for champion in champions if champion.implementation.name not in far]
    timings = job.measure([champion.contestant() for champion in champions], FINAL_SAMPLES) if champions else []
    standing = sorted(
        ((timing.median_s, place) for place, timing in enumerate(timings) if isinstance(timing, Timing)),
        key=lambda item: item[0],
    )
    counts = job.counts
    path = choices_path(job.operator, detect(job.options.device).name)
    for median_s, place in standing:
        champion, timing = champions[place], timings[place]
        verdict = verify(job.bench, champion.implementation, job.dtype, config=champion.config, effort=BRIEF)
        if isinstance(verdict, Pass):
            verdict = _still_right(job, champion) or replace(verdict, checked=(*verdict.checked, champion.proof.checked[-1]))
        record = job.record(champion.implementation, champion.config, verdict, timing if isinstance(verdict, Pass) and isinstance(timing, Timing) else None)
        if record.timing is None:
            continue
        fastest: dict[str, tuple[str, Config, float]] = {}
        over_default = None
        for seconds, other in standing:
            name, config = champions[other].implementation.name, champions[other].config
            if name == champion.implementation.name and config == champion.implementation.default:
                over_default = median_s / seconds
            elif name != champion.implementation.name:
                fastest.setdefault(name, (name, config, seconds / median_s))
        for item in sorted(beyond, key=lambda item: item.timing.median_s if item.timing else 0.0):
            if item.timing is not None:
                fastest.setdefault(item.implementation.name, (item.implementation.name, item.config, item.timing.median_s / median_s))
        if write:
            form = job.operator.format_of_factors(job.dtype, job.workload.scalars)
            keep(path, record, over_default=over_default, trials=sum(counts.values()), failed=counts[FAILED], factors=form, kind=job.operator.kind_of_call(job.workload.scalars))
        return Tuned(
            operator=job.operator.name,
            workload=job.workload.name,
            dtype=job.dtype,
            record=record,
            over_default=over_default,
            others=tuple(fastest.values()),
            timed=counts[TIMED],
            slower=counts[SLOWER],
            same_code=counts[SAME_CODE],
            failed=counts[FAILED],
            kept=write,
            why=f"kept in {path}" if write else "not kept: a dry run",
        )
    if beyond:
        return _final(job, beyond, write)
    why = "no point passed" if sum(counts.values()) else "no implementation that was asked for takes this workload here"
    return Tuned(
        operator=job.operator.name,
        workload=job.workload.name,
        dtype=job.dtype,
        record=None,
        over_default=None,
        others=(),
        timed=counts[TIMED],
        slower=counts[SLOWER],
        same_code=counts[SAME_CODE],
        failed=counts[FAILED],
        kept=False,
        why=f"{why}; see: opforge verify {job.operator.name}",
    )


def _still_right(job: Job, champion: Champion) -> Verdict | None:
    """What the timed launch is found to do on inputs it has not seen: None when it is right."""
    again = job.bench.refresh(job.prepared)
    again.reset()
    answer = asker(champion.worker)({"do": "run", "launch": champion.launch})
    if answer["status"] != "ok":
        return Broken(case=again.case, dtype=job.dtype, reason=f"after timing: {answer.get('reason')}", isolation=job.host.isolation)
    found = judge(again, job.operator, job.host.isolation)
    return None if isinstance(found, Checked) else found
