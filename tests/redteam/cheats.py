"""The planted cheats: each must fail with every guard up, and pass with its own guard taken away."""

from __future__ import annotations

import ast
import contextlib
import os
import pickle
import re
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.redteam.lowered import RUNNER, lowered

from opforge.core.definition.operator import Case
from opforge.core.evidence.timing_terms import OUT
from opforge.core.evidence.verdict import Pass, Verdict
from opforge.registry import Registry, load
from opforge.runner import Host, InProcess, Isolated
from opforge.runner.walls.guards import ALL, Guards
from opforge.timing import Plan
from opforge.verify import CaseCache, verify
from opforge.verify.cases.hidden import QUICK, Effort

HOME = Path(__file__).parent / "home"
EFFORT = replace(
    QUICK, hidden=0, elements=1 << 10, emulated_elements=1 << 8, own=True, seconds=3.0, repeats=12, shrink_s=0.0
)
BRIEF = replace(
    QUICK, hidden=0, elements=1 << 10, emulated_elements=1 << 8, own=True, seconds=0.0, repeats=0, shrink_s=0.0
)
HIDDEN = replace(
    QUICK, hidden=6, elements=1 << 10, emulated_elements=1 << 8, own=True, seconds=3.0, repeats=2, shrink_s=0.0
)
PLAN = Plan(samples=5, budget_s=0.05, precision=0.5)
LOST_AFTER_S = 6.0


@dataclass(frozen=True, kw_only=True)
class Cheat:
    """One planted cheat: the file, where it stands in the catalogue, the guard that catches it, the cases that show it.

    mode     "verify", or "time" where it shows only once it is timed; "time-out": with the outputs given; "time-cold":
             with a cold cache
    also     guards that are down in both runs, so that the one in question is what catches it
    expect   "": it is caught; "lost" and "passes" as below
    lost     taken in by the harness's own process, the process is lost: there is no verdict at all
    left     it gets through: docs/isolation.md says so
    """

    operator: str
    name: str
    idea: str
    catalogue: str
    guard: str
    cases: tuple[str, ...]
    mode: str
    also: tuple[str, ...] = ()
    expect: str = ""

    @property
    def family(self) -> str:
        return self.catalogue[0]

    @property
    def lost(self) -> bool:
        return self.expect == "lost"

    @property
    def left(self) -> bool:
        return self.expect == "passes"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a cheat: caught with all guards, and passing without its own."""

    cheat: Cheat
    caught: bool
    passes_without: bool
    seconds: float
    words: str


def cheats(home: Path = HOME) -> tuple[Cheat, ...]:
    """Every planted cheat of a home, as its file describes it. A file that describes none is there for comparison."""
    found = []
    for path in sorted(home.glob("*/*_*")):
        if path.suffix not in (".py", ".cpp", ".cu"):
            continue
        text = path.read_text(encoding="utf-8")
        said = (
            ast.get_docstring(ast.parse(text)) or ""
            if path.suffix == ".py"
            else "\n".join(line[3:] for line in text.splitlines() if line.startswith("//"))
        )
        fields = dict(re.findall(r"^(\w+)\s{2,}(.+)$", said, re.MULTILINE))
        if "guard" not in fields:
            continue
        found.append(
            Cheat(
                operator=path.parent.name,
                name=path.stem,
                idea=said.splitlines()[0],
                catalogue=fields["catalogue"],
                guard=fields["guard"],
                cases=tuple(fields["cases"].split()),
                mode=fields["mode"],
                also=tuple(fields.get("lowered", "").split()),
                expect=fields.get("expect", ""),
            )
        )
    return tuple(found)


class Team:
    """Hosts by the guards that are down, kept between cheats: a server takes seconds to start, a worker
    milliseconds.
    """

    def __init__(self, home: Path = HOME, device: str = "cpu") -> None:
        import torch

        # tiny tensors: a pool of threads that spin costs more than it brings, the more so on a busy machine
        self.environment = patch.dict(os.environ, {"OMP_NUM_THREADS": "1"})
        self.environment.start()
        torch.set_num_threads(1)
        self.device = device
        self.registry: Registry = load([home])
        self.hosts: dict[Guards, Isolated] = {}

    def host(self, guards: Guards) -> Isolated:
        if guards not in self.hosts:
            shared = next(iter(self.hosts.values()), None)
            self.hosts[guards] = Isolated(guards=guards, servers=shared.servers if shared else None)
        return self.hosts[guards]

    def close(self) -> None:
        self.environment.stop()
        for host in self.hosts.values():
            host.close()
        self.hosts.clear()

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _chosen(team: Team, cheat: Cheat, without: str) -> tuple[list[Case], Effort]:
    own = {case.name: case for case in team.registry.operator(cheat.operator).cases}
    names = [name for name in cheat.cases if f"cases_{name}" != without]
    return [own[name] for name in names if name != "hidden"], HIDDEN if "hidden" in names else EFFORT


def verdict_on(team: Team, cheat: Cheat, host: Host, without: str = "") -> Verdict:
    """The verdict on a cheat, over the cases that show it."""
    operator = team.registry.operator(cheat.operator)
    implementation = team.registry.implementation(cheat.operator, cheat.name)
    if cheat.mode.startswith("time"):
        return _timed(team, cheat, host)
    cases, effort = _chosen(team, cheat, without)
    limit_s = 2.0 if cheat.catalogue == "F1" else 60.0
    bench = CaseCache(registry=team.registry, operator=operator, host=host, device=team.device, run_limit_s=limit_s)
    try:
        return verify(bench, implementation, "float32", cases=cases, effort=effort)
    finally:
        bench.close()


def _timed(team: Team, cheat: Cheat, host: Host) -> Verdict:
    from opforge.workbench import BenchOptions, bench

    options = BenchOptions(device=team.device, implementations=(cheat.name,), plan=PLAN, effort=BRIEF)
    if cheat.mode == "time-out":
        options = replace(options, terms=(OUT,))
    if cheat.mode == "time-cold":
        options = replace(options, plan=replace(PLAN, cache="cold"))
    # these operators have no store of adequate tolerances; what is asked here is whether the time is believed
    with patch("opforge.workbench.bench.ensure_adequate", lambda operator: None):
        records = list(bench(team.registry, [cheat.operator], options, host))
    return records[-1].verdict


def _in_child(run: Callable[[], Any], limit_s: float) -> Any:
    """What `run` returns in a forked child, or "lost" when the child ends otherwise or does not answer."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        with contextlib.suppress(BaseException):
            answer = pickle.dumps(run())
            os.write(theirs, answer)
        os._exit(0)
    os.close(theirs)
    try:
        ready, _, _ = select.select([ours], [], [], limit_s)
        data = os.read(ours, 1 << 16) if ready else b""
    finally:
        os.close(ours)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    # written by this module's own child, which has run one of the cheats of this folder
    return pickle.loads(data) if data else "lost"


def _slowly(*args: Any, **kwargs: Any) -> Any:
    """Judges after a while: a kernel that is not stopped has time to finish."""
    from opforge.verify import judge

    time.sleep(0.3)
    return judge(*args, **kwargs)


@contextlib.contextmanager
def circumstances(cheat: Cheat) -> Iterator[Guards]:
    """What holds in both runs of a cheat: the guards that are down beside its own, and a judge that takes its time
    where
    the question is whether work goes on meanwhile."""
    with contextlib.ExitStack() as stack:
        for name in cheat.also:
            stack.enter_context(lowered(name))
        if cheat.guard == "audit_conserved":
            # these cheats let no graph be captured. Without that trial, and CUPTI's, it is the same clock, some seconds
            # sooner
            stack.enter_context(patch("opforge.timing.measure.clocks_of", lambda device: ("cuda_event",)))
        if cheat.guard in ("freeze", "nonce"):
            stack.enter_context(patch("opforge.verify.judging.run_case.judge", _slowly))
            stack.enter_context(patch("opforge.verify.judging.repeats.judge", _slowly))
        yield ALL.without(*(name for name in cheat.also if name in RUNNER))


def passes_without(team: Team, cheat: Cheat) -> bool:
    """Whether a cheat gets its Pass, or takes the harness down, once its guard is taken away."""
    if cheat.guard == "process":

        def inside() -> str:
            return type(verdict_on(team, cheat, InProcess())).__name__

        answer = _in_child(inside, 2.0 if cheat.catalogue == "F1" else LOST_AFTER_S * 5)
        return answer == ("lost" if cheat.lost else "Pass")
    return isinstance(verdict_without(team, cheat), Pass)


def verdict_without(team: Team, cheat: Cheat) -> Verdict:
    """The verdict on a cheat once its guard is taken away, which is the judge's or the runner's."""
    with circumstances(cheat) as base, lowered(cheat.guard):
        guards = base.without(cheat.guard) if cheat.guard in RUNNER else base
        return verdict_on(team, cheat, team.host(guards), cheat.guard)


def try_all(team: Team, chosen: Sequence[Cheat], *, without: bool = True) -> Iterator[Outcome]:
    """Each cheat, guarded and (unless `without` is False) with its guard taken away."""
    for cheat in chosen:
        began = time.perf_counter()
        with circumstances(cheat) as guards:
            found = verdict_on(team, cheat, team.host(guards))
        passes = passes_without(team, cheat) if without and not cheat.left else True
        words = getattr(found, "reason", "") or getattr(found, "cause", "") or type(found).__name__
        yield Outcome(
            cheat=cheat,
            caught=not isinstance(found, Pass),
            passes_without=passes,
            seconds=time.perf_counter() - began,
            words=f"{type(found).__name__}: {words}",
        )
