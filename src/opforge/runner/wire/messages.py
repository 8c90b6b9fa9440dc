"""What parent and worker say to each other: a frozen class a message. The parent asks questions, a worker answers
(runner/wire/protocol.py checks what arrives).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from opforge.core.definition.implementation import Config

# ---- answers, and what the server says -------------------------------------------------------------------------------


OTHER, SAME = 1, 2
"""What the parent wrote to the arena before a call: other content than that of the last one, or what stood there."""
UNTOUCHED, PAUSE, AGAIN, NEW = range(4)
"""What the sampler does before a call whose tensors change as a whole (SampleRequest.steps): nothing, a pause as long
as the last writing took, it writes what stands there AGAIN, or NEW content."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a worker says when it has done what it was asked for."""

    status: ClassVar[str] = "ok"


@dataclass(frozen=True, kw_only=True)
class Failure(Answer):
    """What a worker says when it has not, and why."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Refused(Failure):
    """The implementation does not take the call, says the worker."""

    status: ClassVar[str] = "rejected"


@dataclass(frozen=True, kw_only=True)
class Lacks(Failure):
    """Something must be there first. `later`: it may be there when it is asked again."""

    status: ClassVar[str] = "lacks"
    later: bool = False


@dataclass(frozen=True, kw_only=True)
class CompilerLate(Failure):
    """A compiler met its limit before any of the kernel's code ran."""

    status: ClassVar[str] = "compiler late"
    limit_s: float


@dataclass(frozen=True, kw_only=True)
class Failed(Failure):
    """The kernel raised, or broke its contract. `trace`: the end of the traceback."""

    status: ClassVar[str] = "failed"
    trace: str = ""


@dataclass(frozen=True, kw_only=True)
class Unfit(Failure):
    """It cannot be done in this way here, and no kernel is to blame: the clock is unfit, no graph can be captured."""

    status: ClassVar[str] = "unfit"


@dataclass(frozen=True, kw_only=True)
class Unlike(Failure):
    """Calls that are timed together do not all do the same: no clock is asked for after that."""

    status: ClassVar[str] = "unlike"


@dataclass(frozen=True, kw_only=True)
class LaunchBound(Answer):
    """The number of the launch, what a reader should know of it, and the version of Landlock around the worker (0:
    none).
    """

    status: ClassVar[str] = "bound"
    launch: int
    notes: tuple[str, ...] = ()
    confined: int = 0


@dataclass(frozen=True, kw_only=True)
class Done(Answer):
    """It is done, and there is nothing to tell."""


@dataclass(frozen=True, kw_only=True)
class Launched(Answer):
    """It ran: how often each of PyTorch's operations was called, evidence of foreign code, and what a compiler would
    have said of what was interpreted.
    """

    operations: Mapping[str, int] = field(default_factory=dict)
    foreign: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the parent saw of a request: its own clock, and what the worker's threads had of the processors meanwhile.
    In seconds, and in switches.
    """

    wall_s: float
    own_s: float
    waited_s: float
    voluntary: int
    involuntary: int


@dataclass(frozen=True, kw_only=True)
class Samples(Answer):
    """Seconds per call, the calls in a sample, and the seconds of the calls before. `seen` is the parent's own, and
    comes from no worker.

    left   of what was `collected`, the checksum of the outputs as the last call left them (Arena.checksum)
    """

    samples: tuple[float, ...]
    batch: int
    lead_s: Number = 0.0
    left: int | None = None
    seen: Seen | None = None


@dataclass(frozen=True, kw_only=True)
class OnTerms(Answer):
    """The number of the launch on the terms that were asked for."""

    launch: int


@dataclass(frozen=True, kw_only=True)
class HostCost(Answer):
    """Seconds the host spends to start one call."""

    samples: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Clocks(Answer):
    """What the sampling loop costs per call, the steps of the host's clock and of the device's events, and a probe of
    the cache, in seconds.
    """

    samples: tuple[float, ...]
    step: Number
    threads: int
    cpus: int
    event_step: Number | None = None
    warm_s: Number | None = None
    cold_s: Number | None = None


@dataclass(frozen=True, kw_only=True)
class Extra(Answer):
    """Bytes that one call takes beyond the arena; None where it cannot be told."""

    bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Work(Answer):
    """Kernels, copies and fills of a device, and the seconds in which it was busy with them."""

    pieces: int
    busy: float


@dataclass(frozen=True, kw_only=True)
class Phase(Answer):
    """Said before an answer: whether a compiler runs inside of the call from now on, or none any more."""

    status: ClassVar[str] = "phase"
    compiling: bool


@dataclass(frozen=True, kw_only=True)
class WorkerReady(Answer):
    """A worker's first word: its process id as the parent knows it."""

    status: ClassVar[str] = "here"
    pid: int


@dataclass(frozen=True, kw_only=True)
class ServerReady(Answer):
    """A server's first word: its process id, its helpers', and the walls around it."""

    status: ClassVar[str] = "ready"
    pid: int
    helpers: tuple[int, ...]
    level: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Spawned(Answer):
    """A worker was forked: its process id as the server knows it, its folder, and the first process of its namespace
    (0: it has none of its own).
    With a reason, none was."""

    status: ClassVar[str] = "spawned"
    pid: int = 0
    scratch: str = ""
    first: int = 0
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Exited(Answer):
    """A worker ended, with this exit code (negative: a signal)."""

    status: ClassVar[str] = "exited"
    pid: int
    code: ExitCode


Number = float
"""A field that holds an integer or a float."""
ExitCode = int
"""An integer that may be negative."""


# ---- questions -------------------------------------------------------------------------------------------------------

A = TypeVar("A", bound=Answer, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Question(Generic[A]):
    """What the parent asks a worker, which answers A or a Failure."""

    do: ClassVar[str]
    answer: ClassVar[type[Answer]] = Done


@dataclass(frozen=True, kw_only=True)
class Bind(Question[LaunchBound]):
    """Tie an implementation to the tensors of an arena, whose descriptor comes beside it.

    homes   the folders of operators, as the parent knows them
    arena   what Arena.describe says
    """

    do: ClassVar[str] = "bind"
    answer: ClassVar[type[Answer]] = LaunchBound
    homes: tuple[str, ...]
    operator: str
    implementation: str
    axes: Mapping[str, Any]
    dtype: str
    scalars: Mapping[str, Any]
    device: str
    config: Config | None
    arena: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Run(Question[Launched]):
    """Take the arena's bytes as they are now, run once, put the outputs back. Without `upload` a device keeps the bytes
    that it has. `written` as in Sample: with SAME the memory that a result will be made in keeps what it holds.
    `beside`: another launch that a second thread calls meanwhile, both over and over; its outputs are put back too.
    """

    do: ClassVar[str] = "run"
    answer: ClassVar[type[Answer]] = Launched
    launch: int
    upload: bool = True
    written: int = OTHER
    beside: int = -1


@dataclass(frozen=True, kw_only=True)
class Collect(Question[Done]):
    """Put what the last run left into the arena."""

    do: ClassVar[str] = "collect"
    launch: int


@dataclass(frozen=True, kw_only=True)
class Terms(Question[OnTerms]):
    """A bound launch on other terms (core.evidence.timing_terms): the same kernel on the same memory."""

    do: ClassVar[str] = "terms"
    answer: ClassVar[type[Answer]] = OnTerms
    launch: int
    terms: str


@dataclass(frozen=True, kw_only=True)
class Release(Question[Done]):
    """Forget a launch, and give its memory back. `mapped`: the next one will be on the same arena, which stays mapped
    and pinned until another is bound.
    """

    do: ClassVar[str] = "release"
    launch: int
    mapped: bool = False


@dataclass(frozen=True, kw_only=True)
class Spare(Question[Done]):
    """Give back the device's memory that a launch keeps for the next sample and can take again: graphs that were
    captured, and what calls took for themselves.
    """

    do: ClassVar[str] = "spare"
    launch: int


@dataclass(frozen=True, kw_only=True)
class Sample(Question[Samples]):
    """`count` samples of `batch` calls each, after `lead` calls that are not timed, by the clock `timer`.

    cache    "warm" or "cold"
    apart    on a GPU each sample comes long after what ran before it
    upload   the arena's bytes are taken to the device first
    written  what the parent wrote to the arena before: nothing (0), what stood there (SAME) or OTHER content
    collected, places, contents, spans, steps   runner.worker.sample_requests.SampleRequest; by a device's clocks
             runner.worker.device_clocks.row
    """

    do: ClassVar[str] = "sample"
    answer: ClassVar[type[Answer]] = Samples
    launch: int
    timer: str
    cache: str
    batch: int = 1
    count: int = 1
    lead: int = 0
    apart: bool = False
    upload: bool = False
    written: int = 0
    collected: bool = False
    places: tuple[tuple[int, bytes, bytes], ...] = ()
    contents: bytes = b""
    spans: tuple[tuple[int, int, int], ...] = ()
    steps: tuple[tuple[int, int], ...] = ()

    def untold(self) -> Sample:
        """The same without the numbers: how many calls it is, the worker is told through a descriptor
        (shapes.Shape).
        """
        told = Sample(launch=self.launch, timer=self.timer, cache=self.cache)
        return dataclasses.replace(told, apart=self.apart, upload=self.upload)


@dataclass(frozen=True, kw_only=True)
class LaunchCost(Question[HostCost]):
    """Seconds the host spends to start one call of an accelerator's kernel."""

    do: ClassVar[str] = "launch_cost"
    answer: ClassVar[type[Answer]] = HostCost
    launch: int
    batch: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Memory(Question[Extra]):
    """Bytes that one call takes beyond the arena, at its peak."""

    do: ClassVar[str] = "memory"
    answer: ClassVar[type[Answer]] = Extra
    launch: int


@dataclass(frozen=True, kw_only=True)
class DeviceWork(Question[Work]):
    """What the device does for `count` calls in a row."""

    do: ClassVar[str] = "work"
    answer: ClassVar[type[Answer]] = Work
    launch: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Replay(Question[Done]):
    """Capture the call in a CUDA graph, take the arena's bytes as they are now, replay the graph, put the
    outputs back.
    """

    do: ClassVar[str] = "replay"
    launch: int


@dataclass(frozen=True, kw_only=True)
class Overhead(Question[Clocks]):
    """What the sampling loop costs, and what the clocks of a torch device type are like."""

    do: ClassVar[str] = "overhead"
    answer: ClassVar[type[Answer]] = Clocks
    batch: int
    count: int
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class GetContext(Question[Done]):
    """Get a device's context and its tracer ready, which takes seconds, before there is anything to bind."""

    do: ClassVar[str] = "context"
    device: str


QUESTIONS: Mapping[str, type[Question[Any]]] = {
    kind.do: kind
    for kind in (
        Bind,
        Run,
        Collect,
        Terms,
        Release,
        Spare,
        Sample,
        LaunchCost,
        Memory,
        DeviceWork,
        Replay,
        Overhead,
        GetContext,
    )
}
_FAILURES = (Refused, Lacks, CompilerLate, Failed, Unfit, Unlike)
FAILURES: Mapping[str, type[Failure]] = {kind.status: kind for kind in _FAILURES}
SERVER: Mapping[str, type[Answer]] = {kind.status: kind for kind in (WorkerReady, ServerReady, Spawned, Exited)}
TIMED = (Sample.do, LaunchCost.do, DeviceWork.do, Overhead.do)
"""Questions that are answered with times."""
