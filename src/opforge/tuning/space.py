"""One implementation's part of a tuning: which of its points are tried, in which order, and how far its search has
come.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opforge.backends import Emulated, Missing, Native, backend
from opforge.core.definition.device import DeviceSpec
from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.implementation import COMPARED_WITH, Config, Implementation, Rejected
from opforge.core.definition.operator import Operator, Workload
from opforge.core.evidence.record import Record
from opforge.core.evidence.verdict import Broken, Unsupported
from opforge.machine import detect
from opforge.registry import Registry
from opforge.trial import leave
from opforge.tuning.code_prior import CodePrior, cannot_launch
from opforge.tuning.codes import Codes, CompiledCode, CompileRefused
from opforge.tuning.compile_queue import LATER, NOW, Compilers, beside_kernels
from opforge.tuning.earlier import stage_of, traces_of
from opforge.tuning.exchange import traces_in
from opforge.tuning.job import Attempt, Job, Passed, attempt
from opforge.tuning.journal import Entry, Journal
from opforge.tuning.outcomes import FAILED, SAME_CODE, TuneOptions, explained
from opforge.tuning.room import NoRoom
from opforge.tuning.search import AHEAD, Search, valid_points
from opforge.tuning.strategies import Failure, Measured, Outcome, Trace

NATIVE = ("cpp", "cuda")
"""Backends whose compilers make a library of a config before anything is bound."""
REACH = 2.0
"""An implementation whose default takes so many times as long as the fastest default is searched last, with what time
is left, and stays out of the final
unless the search brought it near."""


@dataclass(kw_only=True)
class Space:
    """One implementation's part of the work: its search, the code of its points, and how far the search has come.

    refused     how many points of the space its limits refused
    seen        the first point with each code
    unknown     a point that was tried before its code was known
    incumbent   its fastest point that passed, until now
    reference_s the incumbent's time as the strategy was told it: the others' are told as ratios to it, measured side by
                side, so that a clock that drifts changes nothing
    prior       what compiled code says of points that wait
    journal     where the search is kept while it lasts; None before it has begun
    """

    implementation: Implementation
    search: Search
    codes: Codes
    one_point: bool
    refused: int
    prior: CodePrior
    seen: dict[str, Config] = field(default_factory=dict)
    unknown: Config | None = None
    incumbent: Passed | None = None
    reference_s: float = 0.0
    journal: Journal | None = None

    def expected(self, config: Config) -> float:
        """What the code of a point that is compiled lets expect: the less the sooner."""
        code = self.codes.of(config)
        return self.prior.expected(code.use) if isinstance(code, CompiledCode) and code.use else 0.0

    @property
    def waits(self) -> bool:
        """Whether its next point is with a compiler, and others may go first."""
        if self.one_point:
            return False
        if not self.search.given:
            # others compile their default when it is bound, sooner than a compiler beside them would
            return self.implementation.backend in NATIVE and not self.codes.known(self.search.default)
        waiting = self.search.ahead(1)
        return bool(waiting) and not any(map(self.codes.known, waiting))

    @property
    def seconds(self) -> float:
        """The time of its best point until now; infinite where none passed."""
        return self.incumbent.seconds if self.incumbent is not None else float("inf")


def spaces_of(
    registry: Registry,
    operator: Operator,
    workload: Workload,
    dtype: str,
    options: TuneOptions,
    compilers: Compilers,
    earlier: Sequence[Record] = (),
) -> list[Space]:
    """A Space, not yet begun, for each implementation that may be chosen for the workload. `earlier`: records from
    anywhere.
    """
    scalars = operator.scalar_values(workload.scalars)
    spaces = []
    for implementation in eligible(registry, operator, workload, dtype, options):
        points, refused = valid_points(
            implementation, workload.axes, dtype, DTYPES[dtype].itemsize, scalars, _devices(options)
        )
        points = with_these_settings(points, options.settings)
        if options.target is not None and isinstance(
            implementation.allows(
                points[0], workload.axes, dtype, DTYPES[dtype].itemsize, scalars, options.target.bounds()
            ),
            Rejected,
        ):
            # a default that the target cannot run is nobody's measure there
            points = points[1:]
            if not points:
                continue
        search = Search(
            points,
            options.trials,
            seed_of(options, implementation, workload, dtype),
            name=options.strategy,
            traces=_traces(operator, implementation, workload, dtype, options, earlier) if len(points) > 1 else (),
        )
        codes = Codes(
            registry,
            implementation,
            workload.axes,
            dtype,
            scalars,
            options.device,
            detect(options.device).target,
            compilers,
        )
        spaces.append(
            Space(
                implementation=implementation,
                search=search,
                codes=codes,
                one_point=len(points) == 1,
                refused=sum(refused.values()),
                prior=CodePrior(detect(options.device)),
            )
        )
    return spaces


def seed_of(options: TuneOptions, implementation: Implementation, workload: Workload, dtype: str) -> str:
    """Of the order of an implementation's points. A native library is of a config alone: in the same order at every
    workload and dtype, it is compiled once for all of them.
    """
    if implementation.backend in NATIVE and beside_kernels(options.device):
        return f"{options.seed} {implementation.name}"
    return f"{options.seed} {implementation.name} {workload.name} {dtype}"


def _devices(options: TuneOptions) -> list[DeviceSpec]:
    """Whose limits bound the spaces: the device that measures, and the one that is meant."""
    here = detect(options.device)
    return [here] if options.target is None else [here, options.target]


def with_these_settings(points: Sequence[Config], settings: Sequence[Config]) -> list[Config]:
    """The default, points[0], and of the others those that have all values of one of the settings; all without any."""
    default, *others = points
    kept = [item for item in others if any(set(given.values) <= set(item.values) for given in settings)]
    return [default, *(kept if settings else others)]


def _traces(
    operator: Operator,
    implementation: Implementation,
    workload: Workload,
    dtype: str,
    options: TuneOptions,
    earlier: Sequence[Record],
) -> tuple[Trace, ...]:
    given = [trace for file in options.priors for trace in traces_in(file, axes=workload.axes, dtype=dtype)]
    return (*given, *traces_of(operator, implementation, workload, dtype, earlier))


def eligible(
    registry: Registry, operator: Operator, workload: Workload, dtype: str, options: TuneOptions
) -> list[Implementation]:
    """The implementations that run natively on the device, were asked for, take the workload, and have no instructions
    that the target lacks. What is only there to be compared with is no choice of dispatch.
    """
    chosen = []
    for item in registry.implementations(operator.name):
        asked = (not options.implementations or item.name in options.implementations) and (
            not options.backends or item.backend in options.backends
        )
        if (
            not asked
            or item.backend in COMPARED_WITH
            or not isinstance(backend(item.backend).execution_mode(options.device), Native)
        ):
            continue
        if options.target is not None and item.arch not in ("", options.target.target):
            continue
        if not isinstance(item.accepts(workload.axes, dtype, operator.scalar_values(workload.scalars)), Rejected):
            chosen.append(item)
    return chosen


def none_eligible(registry: Registry, operator: Operator, workload: Workload, dtype: str, options: TuneOptions) -> str:
    """Why `eligible` gives none, of what was asked for: what is emulated here has no time to choose by."""
    asked = [
        item
        for item in registry.implementations(operator.name)
        if (not options.implementations or item.name in options.implementations)
        and (not options.backends or item.backend in options.backends)
        and item.backend not in COMPARED_WITH
    ]
    modes = {item.name: backend(item.backend).execution_mode(options.device) for item in asked}
    emulated = [f"{name} ({mode.how})" for name, mode in modes.items() if isinstance(mode, Emulated)]
    if emulated and len(emulated) == sum(not isinstance(mode, Missing) for mode in modes.values()):
        return (
            f"{', '.join(emulated)} can be verified here and not timed: a choice needs the device that it is for. "
            f"Tune on a machine that has it, with --device cuda"
        )
    return "no implementation that was asked for takes this workload here"


def within_reach(seconds: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """The names in the order of their times, those within REACH of the least apart from the others."""
    names = sorted(seconds, key=lambda name: seconds[name])
    near = [name for name in names if seconds[name] <= REACH * seconds[names[0]] < float("inf")]
    return near, names[len(near) :]


def search_space(
    job: Job, space: Space, until: float, finalists: list[Passed], *, points: int = 0, patient: bool = True
) -> bool:
    """Go on with one implementation's search: its fastest point that passed is put among the finalists.

    until     no point is begun after it but the first
    points    so many of them at most; 0: all
    patient   False: it ends where the next point is with a compiler

    Whether there is more to be tried.
    """
    search, last = space.search, space.search.given + points if points else space.search.trials
    beside = beside_kernels(job.options.device)

    def enough() -> bool:
        return job.stop() or (search.given > 0 and time.monotonic() >= until)

    def half() -> float:
        """Where compilers and kernels want the same processors, half of the time that is left is the compilers'."""
        now = time.monotonic()
        return now + (until - now) / 2 if search.given else float("inf")

    if not enough() and not beside and search.given == 0:
        compile_ahead(job, space, search.ahead(1), LATER, half())
    while not enough():
        if search.given >= last:
            return search.given < search.trials
        # compilers work on what comes next while points are measured; where they want the same processors they go first
        waiting = search.ahead(min(AHEAD, job.compilers.jobs) if search.given else 1)
        if fresh := [config for config in waiting if not space.codes.known(config)]:
            if beside:
                compile_ahead(job, space, fresh, NOW)
            elif len(fresh) == len(waiting):
                compile_ahead(job, space, fresh, NOW, half())
        if beside and not patient and space.waits:
            return True
        config = search.next(space.codes.known, space.expected) if beside else search.next()
        if config is None:
            break
        try:
            if not _try(job, space, config, until, finalists):
                break
        except NoRoom as error:
            # nobody's verdict: it is not told, and comes again
            search.take_back(config)
            if space.journal is not None:
                space.journal.take_back(config)
            if config == search.default:
                job.untried[space.implementation.name] = f"the device had no room for it ({error})"
            break
    return False


def _try(job: Job, space: Space, config: Config, until: float, finalists: list[Passed]) -> bool:
    """Try one point that was handed out. False where the end came before its compiler's. Raises NoRoom."""
    implementation, search, codes = space.implementation, space.search, space.codes
    beside = beside_kernels(job.options.device)

    def given_up() -> bool:
        return job.stop() or (search.given > 1 and time.monotonic() >= until)

    code: CompiledCode | CompileRefused | None = None
    if beside and search.given == 1 and not codes.known(config):
        space.unknown = config  # it is tried whatever its code is
    elif not space.one_point:
        # a compiler that is given up goes on: beside the final on a CPU it would be timed with it
        code = codes.of(config, given_up if beside else job.stop)
        if not codes.known(config):
            return False
    if (
        space.unknown is not None
        and codes.known(space.unknown)
        and isinstance(late := codes.of(space.unknown), CompiledCode)
    ):
        space.seen.setdefault(late.sha256, space.unknown)
    challenger: Passed | None = None
    ratio: float | None = None
    taught: Outcome
    sha256 = code.sha256 if isinstance(code, CompiledCode) else ""
    if space.journal is not None:
        space.journal.begin(config)
    if isinstance(code, CompiledCode) and code.use and (why := cannot_launch(code.use, space.prior.device)):
        code = CompileRefused(reason=why)
    if isinstance(code, CompileRefused):
        verdict = Broken(
            case=job.setting.prepared.case, dtype=job.dtype, reason=code.reason, isolation=job.setting.isolation
        )
        outcome, reason, code = FAILED, explained(verdict), None
        record = job.recorded(implementation, config, verdict, None)
        taught = Failure(stage="compile", reason=reason)
    elif code is not None and code.sha256 in space.seen:
        outcome, reason = SAME_CODE, f"the compiler makes what it made of [{space.seen[code.sha256]}]"
        record = job.recorded(implementation, config, Unsupported(reason=f"not measured again: {reason}"), None)
        taught = search.strategy.outcome(space.seen[code.sha256])
    else:
        tried = attempt(job, implementation, config, space.incumbent)
        if code is not None:
            space.seen[code.sha256] = config
        challenger, ratio, outcome, reason = tried.passed, tried.ratio, tried.outcome, tried.reason
        record = job.recorded(implementation, config, tried.verdict, challenger.timing if challenger else None, code)
        taught = _taught(space, tried)
        if code is not None and code.use and isinstance(taught, Measured):
            space.prior.tell(code.use, taught.seconds)
    if config == search.default:
        job.untried.pop(implementation.name, None)
    search.tell(config, taught)
    if space.journal is not None:
        # before anything else: what is here is not measured again, and its record not lost
        space.journal.end(Entry(config=config, outcome=outcome, taught=taught, record=record, code_sha256=sha256))
    job.add(record)
    job.tell(record, outcome, reason, ratio, code, (search.given, search.trials))
    if challenger is not None:
        _admit(job, space, challenger, ratio, finalists)
    return True


def _taught(space: Space, tried: Attempt) -> Outcome:
    """What an attempt says to the strategy: a time relative to the incumbent's, also of those that are too slow to be
    looked at any further.
    """
    if tried.ratio is None:
        return Failure(stage=stage_of(tried.verdict), reason=tried.reason)
    if space.incumbent is None:
        space.reference_s = tried.passed.seconds if tried.passed else 1.0
    return Measured(seconds=tried.ratio * space.reference_s)


def _admit(job: Job, space: Space, challenger: Passed, ratio: float | None, finalists: list[Passed]) -> None:
    """Among the finalists in the incumbent's place, or not at all."""
    incumbent = space.incumbent
    if incumbent is None:
        finalists.append(challenger)
    elif ratio is None or ratio >= 1:
        leave(job.setting, [challenger.ready], [challenger.ready])
        return
    else:
        finalists[finalists.index(incumbent)] = challenger
        leave(job.setting, [incumbent.ready], [incumbent.ready])
    space.incumbent = challenger
    space.reference_s *= ratio or 1.0


def compile_ahead(job: Job, space: Space, configs: Sequence[Config], urgency: int, until: float = float("inf")) -> None:
    """Hand the points to the compilers. On a CPU wait for them, because nothing may be timed beside them, and begin
    none after `until`.
    """
    if space.one_point:
        return
    if beside_kernels(job.options.device):
        space.codes.ahead(configs, urgency)
        return
    for start in range(0, len(configs), job.compilers.jobs):
        if job.stop() or time.monotonic() >= until:
            return
        together = configs[start : start + job.compilers.jobs]
        space.codes.ahead(together, urgency)
        for config in together:
            space.codes.of(config, job.stop)
