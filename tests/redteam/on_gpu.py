"""What needs a GPU: cheats against its clocks and its memory, contexts that are poisoned, a device that is kept
busy.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.redteam.cheats import BRIEF, Cheat, Team, verdict_on

from opforge.backends import backend
from opforge.core.definition.operator import Case
from opforge.core.evidence.verdict import FAILURES, Checked, Pass, Timeout, Verdict
from opforge.runner.walls.guards import ALL, Guards
from opforge.runner.wire.messages import Sample, Samples
from opforge.verify import CaseCache, verify
from opforge.verify.judging.run_case import Ran, judge, run_again, run_once

HOME = Path(__file__).parent / "home_gpu"
SIDE_BY_SIDE = 4
AFTER = 4
COLD_TIMERS = ("cuda_event", "cuda_graph")
"""Around events one call is a sample, and the reset is what makes it cold; a graph goes round the buffers as well."""
COLD_ROUNDS = 5
COLD_SAMPLES = 7
GAINS = 0.93
"""A time below this share of the honest kernel's is a gain. On an H200 the shares are 1.00 with the guard and 0.86 to
0.87 without:
half of the cache can be pinned, and a launch of 24 MiB is not long beside what the events themselves cost."""


def verdict_of(team: Team, name: str, *, limit_s: float = 60.0) -> Verdict:
    """The verdict on one implementation of rt_double, over its plain case."""
    operator = team.registry.operator("rt_double")
    bench = CaseCache(
        registry=team.registry, operator=operator, host=team.host(ALL), device="cuda", run_limit_s=limit_s
    )
    try:
        return verify(
            bench, team.registry.implementation("rt_double", name), "float32", cases=operator.cases[:1], effort=BRIEF
        )
    finally:
        bench.close()


def honest_time(team: Team, name: str = "torch_honest") -> str:
    """Why an honest kernel of rt_double was not timed by the clocks that the cheats are held to; "" when it got one."""
    honest = Cheat(operator="rt_double", name=name, idea="", catalogue="", guard="", cases=(), mode="time")
    found = verdict_on(team, honest, team.host(ALL))
    return (
        ""
        if isinstance(found, Pass)
        else f"{type(found).__name__}: {getattr(found, 'reason', '') or getattr(found, 'cause', '')}"
    )


@dataclass(frozen=True, kw_only=True)
class Poisoned:
    """How many kernels that poison their context were refused, in how many honest ones beside them were right meanwhile
    and of how
    many, and how many honest ones in fresh workers were right after them, of AFTER."""

    refused: int
    beside: int
    asked: int
    after: int
    seconds: float


def poison(team: Team, count: int = 20) -> Poisoned:
    """`count` kernels that poison their context, SIDE_BY_SIDE at a time, while one honest kernel in a context of its
    own is
    run and judged again and again; honest kernels in fresh contexts afterwards."""
    began = time.perf_counter()
    operator = team.registry.operator("rt_double")
    honest = team.registry.implementation("rt_double", "torch_honest")
    host = team.host(ALL)
    bench = CaseCache(registry=team.registry, operator=operator, host=host, device="cuda")
    worker = host.worker(backend("torch").environment("cuda"))
    beside = asked = 0
    try:
        prepared = bench.prepare(operator.cases[0], "float32")
        ran = run_once(bench, worker, honest, prepared, None)
        assert isinstance(ran, Ran), ran
        with ThreadPoolExecutor(SIDE_BY_SIDE) as attackers:
            attacks = [attackers.submit(verdict_of, team, "torch_poisons") for _ in range(count)]
            while asked < count or not all(attack.done() for attack in attacks):
                asked += 1
                beside += run_again(bench, worker, ran.launch, prepared) is None and isinstance(
                    judge(prepared, operator, host.isolation), Checked
                )
                time.sleep(0.02)
            refused = sum(isinstance(attack.result(), FAILURES) for attack in attacks)
    finally:
        worker.close()
        bench.close()
    after = sum(isinstance(verdict_of(team, "torch_honest"), Pass) for _ in range(AFTER))
    return Poisoned(refused=refused, beside=beside, asked=asked, after=after, seconds=time.perf_counter() - began)


def busy_device(team: Team) -> tuple[bool, bool, float]:
    """Whether a kernel that never ends gets its Timeout, whether the next one gets its Pass, and how long both took,
    seconds.
    """
    began = time.perf_counter()
    late = isinstance(verdict_of(team, "torch_never_ends", limit_s=3.0), Timeout)
    return late, isinstance(verdict_of(team, "torch_honest"), Pass), time.perf_counter() - began


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """Cold times, seconds, of the honest kernel and of the one that pins its input: with the guard up, and down."""

    timer: str
    honest_s: float
    pinned_s: float
    honest_without_s: float
    pinned_without_s: float

    @property
    def neutralised(self) -> bool:
        return self.pinned_s > GAINS * self.honest_s

    @property
    def gains_without(self) -> bool:
        return self.pinned_without_s <= GAINS * self.honest_without_s

    def __str__(self) -> str:
        def pair(pinned: float, honest: float) -> str:
            return f"{pinned * 1e6:.2f} us against {honest * 1e6:.2f} us"

        return (
            f"{self.timer}: pinned {pair(self.pinned_s, self.honest_s)} of the honest kernel; without the guard "
            f"{pair(self.pinned_without_s, self.honest_without_s)}"
        )


def pinned_cache(team: Team) -> list[Pinned]:
    """Times the kernel that pins its input in the cache against the honest one, cold, with the guard up and down, by
    each of two clocks.
    """
    down = ALL.without("cold")
    seen = [_cold(team, name, guards) for guards in (ALL, down) for name in ("cuda_honest", "cuda_pinned")]
    return [
        Pinned(
            timer=timer,
            honest_s=seen[0][timer],
            pinned_s=seen[1][timer],
            honest_without_s=seen[2][timer],
            pinned_without_s=seen[3][timer],
        )
        for timer in COLD_TIMERS
    ]


def _cold(team: Team, name: str, guards: Guards) -> dict[str, float]:
    operator, implementation = team.registry.operator("rt_total"), team.registry.implementation("rt_total", name)
    host = team.host(guards)
    bench = CaseCache(registry=team.registry, operator=operator, host=host, device="cuda")
    workload = operator.workloads[0]
    worker = host.worker(backend("cuda").environment("cuda"))
    try:
        prepared = bench.prepare(Case(name=workload.name, axes=workload.axes, why=workload.source), "float32")
        ran = run_once(bench, worker, implementation, prepared, None)
        assert isinstance(ran, Ran), ran
        times: dict[str, list[float]] = {timer: [] for timer in COLD_TIMERS}
        for _ in range(COLD_ROUNDS):
            for timer, kept in times.items():
                answer = worker.request(Sample(launch=ran.launch, timer=timer, cache="cold", count=COLD_SAMPLES))
                assert isinstance(answer, Samples), answer
                kept.append(median(answer.samples))
        return {timer: median(kept) for timer, kept in times.items()}
    finally:
        worker.close()
        bench.close()
