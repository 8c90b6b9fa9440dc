"""The part of `make trust` that asks whether times are what they say: alone, among rivals, and in a plain loop that
shares no code with them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OPERATORS = (
    "bias_add",
    "add_scalar",
    "relu",
    "gelu",
    "silu",
    "silu_mul",
    "softmax",
    "log_softmax",
    "rmsnorm",
    "layernorm",
    "scale_shift",
    "broadcast_add",
)
BACKENDS = ("torch", "compile", "cpp", "tilelang")
WITHIN, ROUGHLY = 0.05, 0.25
"""What a ratio that ought to be 1 may be off by; and, in a quick look at a machine that others use too, what no round
may agree that it is off by. What was
wrong once were factors of 1.5 to 6."""

OTHERS = 0.25
"""Processors that others keep busy from which on a figure says more of what runs beside than of the timing."""

CALLS = 60
THREADS = {"OMP_NUM_THREADS": str(os.cpu_count() or 1)}
UNEQUAL: Mapping[str, Mapping[str, str]] = {
    "as it is": {},
    "spinning": {"OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "INFINITY"},
    "allocating": {"MALLOC_MMAP_MAX_": "65536", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"},
    "single-threaded": {"OMP_NUM_THREADS": "1"},
}
"""The same code in four environments: the one that spins would keep a processor, the one that allocates the memory,
from all others.
"""


@dataclass(frozen=True)
class Ratio:
    """One ratio of times: what of what, its median over the rounds, the least of them and the largest."""

    what: str
    middle: float
    low: float
    high: float

    def holds(self, surely: bool) -> bool:
        """Whether it is 1 within WITHIN; `surely` False asks only that the rounds do not agree that it is not, within
        ROUGHLY.
        """
        return (
            1 - WITHIN <= self.middle <= 1 + WITHIN if surely else self.low <= 1 + ROUGHLY and self.high >= 1 - ROUGHLY
        )


def ratio(what: str, of: Sequence[float], to: Sequence[float]) -> Ratio:
    """The Ratio of two series that were taken interleaved."""
    ratios = sorted(one / other for one, other in zip(of, to, strict=True))
    return Ratio(what, median(ratios), ratios[0], ratios[-1])


class Plain:
    """scripts/plain_loop.py, stopped whenever nothing is asked of it."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        from opforge.runner.sandbox import KEPT_MEMORY

        command = [sys.executable, str(ROOT / "scripts" / "plain_loop.py"), *arguments, str(CALLS)]
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **KEPT_MEMORY, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def take(self) -> float:
        """The median of CALLS calls now, seconds."""
        import signal

        from opforge.runner import processes

        assert self.process.stdin is not None and self.process.stdout is not None
        processes.kill_group(self.process.pid, signal.SIGCONT)
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found = float(self.process.stdout.readline())
        processes.stop(self.process.pid)
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def rounds(
    operator_name: str, sides: Mapping[str, tuple[str, Mapping[str, str]]], count: int, budget_s: float, *, plain: bool
) -> dict[str, dict[str, list[float]]]:
    """Seconds per call by side: "alone", "among" the others, and in a "plain" loop, `count` times over, interleaved.

    sides   the implementation and the environment of each, by name
    """
    from opforge.backends import backend
    from opforge.core.operator import Case
    from opforge.core.timing import Timing, Untimed
    from opforge.core.verdict import Pass
    from opforge.registry import load
    from opforge.runner import Isolated
    from opforge.timing import Candidate, Plan, measure
    from opforge.timing.worker_requests import asker
    from opforge.verify import CaseCache, bind_blind, run_of

    registry = load([])
    operator = registry.operator(operator_name)
    workload = min(
        (item for item in operator.workloads if item.scale == "laptop"),
        key=lambda item: operator.cost(item.axes, "float32", operator.scalar_values(item.scalars)).bytes,
    )
    case = Case(name=workload.name, axes=workload.axes, why=workload.source, scalars=workload.scalars)
    proof: Any = Pass(checked=(), not_taken=(), isolation="")
    with contextlib.ExitStack() as stack:
        host = stack.enter_context(Isolated())
        cases = CaseCache(registry=registry, operator=operator, host=host, device="cpu")
        stack.callback(cases.close)
        asks: dict[str, tuple[Any, int]] = {}
        loops: dict[str, Plain] = {}
        prepared = cases.prepare(case, "float32")
        for side, (name, environment) in sides.items():
            item = registry.implementation(operator_name, name)
            worker = host.worker({**THREADS, **backend(item.backend).environment("cpu"), **environment})
            stack.callback(worker.close)
            answer = bind_blind(run_of(cases, worker, item, prepared, None))
            asks[side] = asker(worker), on_call(worker, answer.launch)
            if plain:
                loops[side] = Plain((operator_name, name, workload.name, "float32"), {**THREADS, **environment})
                stack.callback(loops[side].close)
        prepared.reset()

        def timed(names: Sequence[str]) -> dict[str, float]:
            candidates = [Candidate(name=side, proof=proof, ask=asks[side][0], launch=asks[side][1]) for side in names]
            found = measure(candidates, Plan(budget_s=budget_s), overhead_s=0.0)
            wrong = next((value for value in found.values() if isinstance(value, Untimed)), None)
            if wrong is not None:
                raise RuntimeError(wrong.reason)
            return {side: value.median_s for side, value in found.items() if isinstance(value, Timing)}

        seen: dict[str, dict[str, list[float]]] = {side: {"alone": [], "among": [], "plain": []} for side in sides}
        for at in range(count + 1):
            together: dict[str, float] = timed(list(sides))
            for side in sides:
                alone, loop = timed([side])[side], loops[side].take() if plain else 0.0
                if at:  # the first round warms
                    for word, value in (("alone", alone), ("among", together[side]), ("plain", loop)):
                        seen[side][word].append(value)
        return seen


def on_call(worker: Any, launch: int) -> int:
    """The launch as a caller gets it, where a worker can be asked for that."""
    from opforge.runner.messages import Failure, Terms

    answer = worker.request(Terms(launch=launch, terms="call"))
    return launch if isinstance(answer, Failure) else int(answer.launch)


def ratios(seen: Mapping[str, Mapping[str, Sequence[float]]], where: str, *, plain: bool) -> Iterator[Ratio]:
    """Among to alone, and each to the plain loop, for every side."""
    for side, times in seen.items():
        yield ratio(f"{where} {side}: among/alone", times["among"], times["alone"])
        if plain:
            yield ratio(f"{where} {side}: alone/plain", times["alone"], times["plain"])
            yield ratio(f"{where} {side}: among/plain", times["among"], times["plain"])


def asked(load: Callable[[int], AbstractContextManager[None]], *, quick: bool) -> Iterator[tuple[str, str, str, bool]]:
    """Name, what is wanted, what was found and whether it holds, for each figure."""
    from opforge.registry import load as registry_of

    count, budget_s = (5, 0.4) if quick else (7, 0.7)
    registry = registry_of([])
    for busy in (0,) if quick else (0, 1):
        beside = "one busy core" if busy else "quiet"
        with load(busy):
            yield again(f"A/A between unequal sides, {beside}", partial(unequal_sides, count, budget_s), quick, busy)
            yield again(
                f"alone, among rivals and in a plain loop, {beside}",
                partial(by_backends, registry, OPERATORS[:1] if quick else OPERATORS, count, budget_s),
                quick,
                busy,
            )


def unequal_sides(count: int, budget_s: float) -> list[Ratio]:
    """The ratios of one kernel in the four environments of UNEQUAL."""
    sides = {side: ("torch_eager", environment) for side, environment in UNEQUAL.items()}
    return list(ratios(rounds("bias_add", sides, count, budget_s, plain=False), "bias_add", plain=False))


def by_backends(registry: Any, names: Sequence[str], count: int, budget_s: float) -> list[Ratio]:
    """The ratios of the first implementation of each of BACKENDS, for each operator."""
    found: list[Ratio] = []
    for name in names:
        by_backend = {
            item.backend: item.name for item in reversed(registry.implementations(name)) if item.backend in BACKENDS
        }
        sides: dict[str, tuple[str, Mapping[str, str]]] = {
            by_backend[word]: (by_backend[word], {}) for word in BACKENDS if word in by_backend
        }
        found += ratios(rounds(name, sides, count, budget_s, plain=True), name, plain=True)
    return found


def elsewhere(seconds: float = 1.0) -> float:
    """How many of the processors that this process may use are busy while it sleeps. Asked when no worker lives: what
    the timing itself fails to stop is
    no excuse."""
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}

    def idle_ticks() -> int:
        lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
        return sum(int(words[4]) + int(words[5]) for words in lines if words[0] in mine)

    before, started = idle_ticks(), time.monotonic()
    time.sleep(seconds)
    return max(0.0, len(mine) - (idle_ticks() - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - started))


def again(name: str, take: Callable[[], list[Ratio]], quick: bool, busy: int) -> tuple[str, str, str, bool]:
    """One figure, beside `busy` processes of ours. Where it falls short and others have the processors, it is asked
    once more; where they still have, a quick look leaves it open, and says so, and a full one fails: it needs a machine
    of its own. A quick look asks three times: neighbours of a virtual machine are seen by nobody, and a defect is there
    each time.
    """
    seen = []
    for at in range(3 if quick else 2):
        others = elsewhere() - busy
        name, wanted, words, holds = told(name, take(), quick)
        others = max(others, elsewhere() - busy)
        seen.append(f"{others:.1f}")
        if holds or (others <= OTHERS and (at == 2 or not quick)):
            return name, wanted, words, holds
    words += f"\n    others kept {' and then '.join(seen)} processors busy"
    return name, wanted, ("NOT DECIDED: " if quick else "") + words, quick


def told(name: str, found: Sequence[Ratio], quick: bool) -> tuple[str, str, str, bool]:
    """One figure: every ratio within the bounds, and those that are not."""
    short = [item for item in found if not item.holds(not quick)]
    apart = max(found, key=lambda item: abs(item.middle - 1))
    words = f"{len(found) - len(short)} of {len(found)}, furthest {apart.what} {apart.middle:.3f}" + "".join(
        f"\n    {item.what} {item.middle:.3f} ({item.low:.3f} to {item.high:.3f})" for item in short
    )
    bound = ROUGHLY if quick else WITHIN
    return name, f"{len(found)} ratios within {1 - bound:.2f} to {1 + bound:.2f}", words, not short
