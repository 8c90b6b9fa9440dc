"""The part of `make trust` that asks whether times are what they say: alone, among rivals, and in a plain loop that
shares no code with them.

A question about 5 % can't be asked in one process of each kind: pages lie elsewhere in the next one. So there are SETS
of fresh processes, each with a worker and two plain loops for every side; the two loops are compared with each other as
ours are with them. Where that comparison isn't 1 within the bound, neither can ours be: the row is "unanswerable here",
and no pass. Nor in one moment: what else runs on a machine's cores changes within tenths of a second, on quiet ones too
where the other half of a core is a stranger's. So turns of ours and of a loop follow each other, each pair is a ratio,
and what counts is the median of those of all sets.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from plain_loops import Loop, Loops
from trust_parts import PARTS

from opforge.core.evidence.statistics import median_interval

SHAPES = {
    "bias_add": "lead=256,tail=3072",
    "add_scalar": "shape=1024x768",
    "relu": "shape=256x3072",
    "gelu": "shape=256x3072",
    "silu": "shape=256x3072",
    "silu_mul": "shape=256x2432",
    "softmax": "lead=12x256,cols=256",
    "log_softmax": "lead=16,cols=50257",
    "rmsnorm": "lead=1024,cols=896",
    "layernorm": "lead=1024,cols=768",
    "scale_shift": "batch=1,channels=256,spatial=56x56",
    "broadcast_add": "i=4,j=12,k=128,l=128,bi=4,bj=1,bk=1,bl=128",
}
"""Twelve operators, each in a shape whose inputs and two results (that of the last call lives until the next is made)
are 9 to 12 MiB: more than the second-level caches hold, and a third of a third-level cache of 32 MiB. Nobody can answer
a question about 5 % where a working set just fits or just doesn't: with 36 MiB and that cache, equal plain loops took
160 to 460 us, and one of them 342 and then 182 (add_scalar, 2 cores, EPYC, 2026-11-26).
"""

BACKENDS = ("torch", "compile", "cpp", "tilelang")
WITHIN, ROUGHLY = 0.05, 0.25
"""What a ratio that ought to be 1 may be off by; and, in a quick look at a machine that others use too, what no set
may agree that it is off by. What was wrong once were factors of 1.5 to 6."""
BOUNDS = (1 - WITHIN, 1 + WITHIN)
FEW = 0.05
"""The share of rows that may be unanswerable."""
OTHERS = 0.25
"""Processors that others keep busy from which on a part says more of what runs beside than of the timing."""
SAMPLE_S, RAMP, RAMP_S = 1e-3, 25, 0.1
"""A plain loop's sample, and the calls that it makes before its samples, in so many seconds at most."""
VERIFIED = 24
"""Calls that a worker makes before it is timed. A bench's makes some hundreds when it is verified."""
SETS, MOST, QUICK_SETS = 3, 9, 2
"""Sets of processes that every operator is asked in; at most, while a row of it is not decided; and in a quick look."""


@dataclass(frozen=True)
class Pace:
    """How long is asked.

    budget_s   seconds for each of ours, alone and among the others, with what plain loops take in between
    ramp_s     seconds of calls before a plain loop's samples; where calls take long RAMP of them, RAMP_S at most
    samples    of a millisecond; where calls take longer so many fewer, but three
    """

    budget_s: float
    ramp_s: float
    samples: int

    def asks(self, call_s: float) -> str:
        """What a plain loop is asked for, as its line on stdin."""
        samples = max(3, min(self.samples, round(self.samples * SAMPLE_S / call_s)))
        return f"{samples} {max(self.ramp_s, min(RAMP_S, RAMP * call_s)):.3f}"


FULL, BRIEF = Pace(2.4, 0.03, 10), Pace(0.5, 0.01, 3)
"""In full a plain loop's turn is as long as one of ours, of which there are sixteen."""

THREADS = {"OMP_NUM_THREADS": str(os.cpu_count() or 1)}
BOUND = {"OMP_PROC_BIND": "TRUE", "OMP_PLACES": "cores"}
"""Beside a busy process every loop's threads are held apart, ours and the plain ones. Where the system puts two threads
of a loop on one core and the busy process on the other, it has no reason to move any of them, and each call waits for
two ticks of 4 ms: a plain loop of 36 us took 36 us or 7 ms by where its threads happened to lie.
"""
UNEQUAL: Mapping[str, Mapping[str, str]] = {
    "as it is": {},
    "spinning": {"OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "INFINITY"},
    "allocating": {"MALLOC_MMAP_MAX_": "65536", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"},
    "single-threaded": {"OMP_NUM_THREADS": "1"},
}
"""The same code in four environments: the one that spins would keep a processor, the one that allocates the memory,
from all others.
"""

Sides = Mapping[str, tuple[str, Mapping[str, str]]]
"""The implementation and the environment of each side, by name."""
Moment = tuple[float, float, int]
"""Seconds per call by our timing and by a plain loop right before, and which of two loops that was."""
Times = dict[str, dict[str, list[Moment]]]
"""The moments of one set of processes by side, "alone" and "among" the other sides."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One ratio that ought to be 1.

    middle     of all sets
    interval   of 95 % confidence
    floor      the same of two plain loops: one over the other
    ratios     of each set
    plain_s    what each of the plain loops took
    """

    what: str
    middle: float
    interval: tuple[float, float]
    floor: float
    ratios: tuple[float, ...]
    plain_s: tuple[float, ...]

    @property
    def answerable(self) -> bool:
        """Whether the plain loop agrees with itself."""
        return abs(self.floor - 1) <= WITHIN

    @property
    def decided(self) -> bool:
        """Whether more sets would hardly change what is said of it: its interval lies on one side of each bound."""
        return all((low <= bound) == (high <= bound) for low, high in [self.interval] for bound in BOUNDS)

    def holds(self, surely: bool) -> bool:
        """Whether it is 1 within WITHIN; `surely` False asks only that the sets do not agree that it is not, within
        ROUGHLY.
        """
        if surely:
            return self.answerable and abs(self.middle - 1) <= WITHIN
        return min(self.ratios) <= 1 + ROUGHLY and max(self.ratios) >= 1 - ROUGHLY

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.what} {self.middle:.3f} (95 %: {low:.3f} to {high:.3f}; {len(self.ratios)} sets, "
            f"{min(self.ratios):.3f} to {max(self.ratios):.3f}); two plain loops {self.floor:.3f}, all of them "
            f"{min(self.plain_s):.3g} s and up to {max(self.plain_s) / min(self.plain_s) - 1:.0%} more"
        )


def rows(where: str, sets: Sequence[Times], wanted: Sequence[tuple[str, str]]) -> list[Row]:
    """The Rows of every side: for each of `wanted`, what to what."""
    found = []
    for side in sets[0]:
        loops = [
            [plain_s for moments in one[side].values() for _, plain_s, which in moments if which == loop]
            for one in sets
            for loop in (0, 1)
        ]
        every = [moment for one in sets for moments in one[side].values() for moment in moments]
        floor = over_plain([one for one in every if not one[2]])[0] - over_plain([one for one in every if one[2]])[0]
        for of, to in wanted:
            middle, low, high = ratio_of(sets, side, of, to)
            found.append(
                Row(
                    what=f"{where} {side}: {of}/{to}",
                    middle=math.exp(middle),
                    interval=(math.exp(low), math.exp(high)),
                    floor=math.exp(floor),
                    ratios=tuple(math.exp(ratio_of([one], side, of, to)[0]) for one in sets),
                    plain_s=tuple(map(median, loops)),
                )
            )
    return found


def over_plain(moments: Iterable[Moment]) -> tuple[float, float]:
    """The logarithm of ours over the plain loop, the median over moments, and half of its interval of 95 %."""
    logs = [math.log(ours / plain) for ours, plain, _ in moments]
    low, high = median_interval(logs)
    return median(logs), (high - low) / 2


def ratio_of(sets: Sequence[Times], side: str, of: str, to: str) -> tuple[float, float, float]:
    """The logarithm of a ratio, and the ends of its interval: over the plain loop, or of two such ratios."""
    (middle, half), (less, other) = (
        (0.0, 0.0) if word == "plain" else over_plain(moment for one in sets for moment in one[side][word])
        for word in (of, to)
    )
    reach = math.hypot(half, other)
    return middle - less, middle - less - reach, middle - less + reach


class Processes:
    """Where workers and plain loops of one set come from, for each environment: the imports are done once, the
    processes are new ones. They end with `stack`. Every set has its own: forks of one process have its memory's layout,
    and what that does to a kernel they have in common (add_scalar/tilelang_blocks took 89 to 93 us in the workers of
    two servers and 115 to 125 in those of four others, a plain loop of it 91 to 117; one thread, 2 cores, EPYC,
    2026-11-26).

    common   what all of them start with, besides what is a side's own
    """

    def __init__(self, stack: contextlib.ExitStack, common: Mapping[str, str]) -> None:
        from opforge.runner import Isolated

        self.stack, self.common = stack, common
        self.host = stack.enter_context(Isolated())
        self.started: dict[tuple[tuple[str, str], ...], Loops] = {}

    def loops(self, environment: Mapping[str, str]) -> Loops:
        """Where plain loops with an environment come from."""
        key = tuple(sorted(environment.items()))
        if key not in self.started:
            self.started[key] = Loops(environment)
            self.stack.callback(self.started[key].close)
        return self.started[key]

    def ready(self, environments: Iterable[Mapping[str, str]]) -> None:
        """Start what is not there yet, side by side."""
        environments = [one for one in environments if tuple(sorted(one.items())) not in self.started]
        if environments:
            self.host.ready(environments)
            for environment in environments:
                self.loops(environment)


@contextlib.contextmanager
def processes_of(common: Mapping[str, str]) -> Iterator[Processes]:
    """Processes that end with the block."""
    with contextlib.ExitStack() as stack:
        yield Processes(stack, common)


Start = Callable[[], AbstractContextManager[Processes]]
"""What a set's processes come from: in full new ones, in a quick look those of all sets."""


class Beside:
    """Asks a worker, and one of two plain loops of the same code before its turns: before each of them, or before every
    second one. Of that one nothing is compared then: the one that is followed a turn of its own, as it does `alone`.
    """

    def __init__(self, ask: Any, loops: tuple[Loop, Loop], pace: Pace, alone: bool) -> None:
        self.ask, self.loops, self.pace, self.alone = ask, loops, pace, alone
        self.turns, self.which, self.plain_s = 0, random.randrange(2), SAMPLE_S
        self.samples: list[float] = []
        self.seen: list[Moment] = []

    def __call__(self, question: Any) -> Any:
        from opforge.runner.wire.messages import Sample, Samples

        turn = isinstance(question, Sample) and question.lead > 0
        between = turn and not (self.alone and self.turns % 2)
        if between:
            self.which = 1 - self.which
            self.plain_s = self.loops[self.which].take(self.pace.asks(self.plain_s))
        answer = self.ask(question)
        if turn and isinstance(answer, Samples):
            self.turns += 1
            self.samples += answer.samples
            if not (between and self.alone):
                self.seen.append((median(answer.samples), self.plain_s, self.which))
        return answer

    def moments(self, told_s: float) -> list[Moment]:
        """What was seen, as far as the timing told what the samples say."""
        scale = told_s / median(self.samples)
        return [(ours_s * scale, plain_s, which) for ours_s, plain_s, which in self.seen]


def one_set(operator_name: str, sides: Sides, processes: Processes, pace: Pace) -> Times:
    """The Times of fresh processes, one worker and two plain loops for each side, taken turn about."""
    from opforge.backends import backend
    from opforge.core.definition.operator import Case
    from opforge.core.definition.own_shapes import parse_shape
    from opforge.core.evidence.timing import Timing, Untimed
    from opforge.core.evidence.verdict import Pass
    from opforge.registry import load
    from opforge.timing import Candidate, Plan, measure
    from opforge.verify import CaseCache

    registry = load([])
    operator = registry.operator(operator_name)
    workload = parse_shape(operator, SHAPES[operator_name])
    case = Case(name=workload.name, axes=workload.axes, why=workload.source, scalars=workload.scalars)
    proof: Any = Pass(checked=(), not_taken=(), isolation="")
    with contextlib.ExitStack() as stack:
        backends = {
            side: backend(registry.implementation(operator_name, name).backend) for side, (name, _) in sides.items()
        }
        environments = {
            side: {**processes.common, **backends[side].environment("cpu"), **environment}
            for side, (_, environment) in sides.items()
        }
        processes.ready(environments.values())
        cases = CaseCache(registry=registry, operator=operator, host=processes.host, device="cpu")
        stack.callback(cases.close)
        asks: dict[str, tuple[Any, int]] = {}
        plain: dict[str, tuple[Loop, Loop]] = {}
        prepared = cases.prepare(case, "float32")
        for side, (name, _) in sides.items():
            arguments = (operator_name, name, SHAPES[operator_name], "float32")
            loops = processes.loops(environments[side])
            plain[side] = loops.loop(*arguments), loops.loop(*arguments)
            for loop in plain[side]:
                stack.callback(loop.close)
        for side, (name, _) in sides.items():
            item = registry.implementation(operator_name, name)
            asks[side] = bound(stack, cases, prepared, item, environments[side])
        prepared.reset()
        for pair in plain.values():
            for loop in pair:
                loop.take()  # the first warms, and waits until it is bound

        def timed(names: Sequence[str], alone: bool) -> dict[str, list[Moment]]:
            asked = {side: Beside(asks[side][0], plain[side], pace, alone) for side in names}
            candidates = [Candidate(name=side, proof=proof, ask=asked[side], launch=asks[side][1]) for side in names]
            found = measure(candidates, Plan(budget_s=pace.budget_s, precision=0.0), overhead_s=0.0)
            wrong = next((value for value in found.values() if isinstance(value, Untimed)), None)
            if wrong is not None:
                raise RuntimeError(wrong.reason)
            return {
                side: asked[side].moments(value.median_s) for side, value in found.items() if isinstance(value, Timing)
            }

        together = timed(list(sides), alone=False)
        return {side: {"among": together[side], "alone": timed([side], alone=True)[side]} for side in sides}


def bound(
    stack: contextlib.ExitStack, cases: Any, prepared: Any, item: Any, environment: Mapping[str, str]
) -> tuple[Any, int]:
    """A new worker that ends with `stack`, and its launch of an implementation: how it is asked, and the number of the
    launch as a caller gets it, where a worker can be asked for that. It has run a few times, as one that was verified:
    it holds what that made, and frees it when it is timed. Raises RuntimeError where it is not bound.
    """
    from opforge.runner.wire.messages import Failure, LaunchBound, Run, Terms
    from opforge.timing.worker_requests import asker
    from opforge.verify import bind_blind, run_of

    worker = cases.host.worker(environment)
    stack.callback(worker.close)
    answer = bind_blind(run_of(cases, worker, item, prepared, None))
    if not isinstance(answer, LaunchBound):
        raise RuntimeError(f"{item.name}: {answer}")
    on_call = worker.request(Terms(launch=answer.launch, terms="call"))
    launch = answer.launch if isinstance(on_call, Failure) else int(on_call.launch)
    for _ in range(VERIFIED):
        worker.request(Run(launch=launch))
    return asker(worker), launch


def asked(load: Callable[[int], AbstractContextManager[None]], *, quick: bool) -> Iterator[tuple[str, str, str, bool]]:
    """Name, what is wanted, what was found and whether it holds, for each figure."""
    for busy in (0,) if quick else (0, 1):
        beside = "one busy core" if busy else "quiet"
        common = {**THREADS, **(BOUND if busy else {})}
        with processes_of(common) as shared:
            start: Start = partial(contextlib.nullcontext, shared) if quick else partial(processes_of, common)
            for name, take in (
                (f"A/A between unequal sides, {beside}", partial(unequal_sides, start, quick)),
                (f"alone, among rivals and in a plain loop, {beside}", partial(by_backends, start, quick)),
            ):
                yield again(name, take, partial(load, busy), quick)


Part = Callable[[str, Callable[[], Any]], tuple[Any, float]]
"""Asks a part of a figure, given its name and what asks it: what that found, and how many processors others kept busy
meanwhile.
"""


def unequal_sides(start: Start, quick: bool, part: Part) -> list[Row]:
    """The rows of one kernel in the four environments of UNEQUAL."""
    sides = {side: ("torch_eager", environment) for side, environment in UNEQUAL.items()}
    return asked_in_sets({"bias_add": sides}, [("among", "alone")], start, quick, part)


def by_backends(start: Start, quick: bool, part: Part) -> list[Row]:
    """The rows of the first implementation of each of BACKENDS, for each operator."""
    from opforge.registry import load

    registry = load([])

    def sides(name: str) -> Sides:
        by_backend = {item.backend: item.name for item in reversed(registry.implementations(name))}
        return {by_backend[word]: (by_backend[word], {}) for word in BACKENDS if word in by_backend}

    operators = list(SHAPES)[: 1 if quick else None]
    wanted = [("among", "alone"), ("alone", "plain"), ("among", "plain")]
    return asked_in_sets({name: sides(name) for name in operators}, wanted, start, quick, part)


def asked_in_sets(
    sides: Mapping[str, Sides], wanted: Sequence[tuple[str, str]], start: Start, quick: bool, part: Part
) -> list[Row]:
    """The rows of every operator. In full, an operator of which one is not decided is asked in further sets, MOST in
    all, and is judged by all of them together.
    """

    def fresh(names: Iterable[str]) -> dict[str, Times]:
        with start() as processes:
            return {name: one_set(name, sides[name], processes, BRIEF if quick else FULL) for name in names}

    found = undisturbed(QUICK_SETS if quick else SETS, lambda number: part(f"set {number}", lambda: fresh(sides)))
    judged: list[Row] = []
    for name in sides:
        sets: list[Times] = [one[name] for one in found]
        while True:
            told = rows(name, sets, wanted)
            if quick or len(sets) >= MOST or all(row.decided for row in told):
                break

            def more(number: int, name: str = name, have: int = len(sets)) -> tuple[Any, float]:
                return part(f"{name} set {have + 1} asked {number}", lambda: fresh([name])[name])

            sets += undisturbed(1, more)
        judged += told
    return judged


def undisturbed(count: int, take: Callable[[int], tuple[Any, float]]) -> list[Any]:
    """What `count` parts found while nobody else had the processors. Twice as many are asked at most; then those with
    the least beside them are taken.
    """
    asked: list[tuple[Any, float]] = []
    while sum(others <= OTHERS for _, others in asked) < count and len(asked) < 2 * count:
        asked.append(take(len(asked) + 1))
    return [found for found, _ in sorted(asked, key=lambda one: one[1])[:count]]


def others_s() -> float:
    """Processor seconds of everything that this process has not started, children that have ended included. What the
    timing itself fails to stop is no excuse.
    """
    from opforge.runner.walls import processes

    ours, ticks = set(processes.tree([os.getpid()])), 0
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) not in ours:
            with contextlib.suppress(OSError, ValueError, IndexError):
                ticks += sum(map(int, (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def again(
    name: str, take: Callable[[Part], list[Row]], load: Callable[[], AbstractContextManager[None]], quick: bool
) -> tuple[str, str, str, bool]:
    """One figure, beside `load`. A quick look that falls short asks three times, and where others have the processors
    it leaves the figure open, and says so: neighbours of a virtual machine are seen by nobody, and a defect is there
    each time. A full one fails: it needs a machine of its own.
    """
    seen = []
    for at in range(3 if quick else 1):
        shares: list[float] = []

        def part(
            what: str, ask: Callable[[], Any], at: int = at, shares: list[float] = shares, figure: str = name
        ) -> tuple[Any, float]:
            def beside() -> Any:
                with load():
                    before, started = others_s(), time.monotonic()
                    found = ask()
                    return {"found": found, "others": (others_s() - before) / (time.monotonic() - started)}

            kept = PARTS.part(f"{figure} {what}{' again' * at}", beside)
            shares.append(kept["others"])
            return kept["found"], kept["others"]

        name, wanted, words, holds = told(name, take(part), quick)
        seen.append(f"{median(shares):.2f}")
        if holds or (at == 2 and median(shares) <= OTHERS):
            return name, wanted, words, holds
    words += f"\n    others kept {' and then '.join(seen)} processors busy"
    return name, wanted, ("NOT DECIDED: " if quick else "") + words, quick


def told(name: str, found: Sequence[Row], quick: bool) -> tuple[str, str, str, bool]:
    """One figure: how many rows hold, and those that do not; in full also those that nobody can answer here, and how
    far a plain loop is from another.
    """
    short = [row for row in found if (quick or row.answerable) and not row.holds(not quick)]
    open_rows = [] if quick else [row for row in found if not row.answerable]
    apart = max(found, key=lambda row: abs(row.middle - 1))
    floors = sorted(abs(row.floor - 1) for row in found)
    words = (
        f"{len(found) - len(short) - len(open_rows)} of {len(found)}, {len(open_rows)} unanswerable here, furthest "
        f"{apart.what} {apart.middle:.3f}; two plain loops are apart by {median(floors):.1%}, at most {floors[-1]:.1%}"
    )
    words += "".join(f"\n    {row}" for row in short) + "".join(f"\n    unanswerable here: {row}" for row in open_rows)
    bound = ROUGHLY if quick else WITHIN
    wanted = f"{len(found)} ratios within {1 - bound:.2f} to {1 + bound:.2f}"
    return name, wanted, words, not short and len(open_rows) <= FEW * len(found)
