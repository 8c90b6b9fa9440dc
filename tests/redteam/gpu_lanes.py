"""Every cheat of the red team on a GPU, in about two minutes: verdicts in processes beside each other, times alone.

First what is only verified, with its guard up and down, in several processes, while nvcc compiles the rest; then honest
kernels and cheats that are timed, one after another, alone on the device; then the same with their guards down, in
four processes, since what runs beside them takes nothing from a cheat that passes; who does not pass there is asked
again alone. What is not done when the limit has passed is said to be not asked, never caught.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from threading import Lock
from typing import Any

from tests.redteam import cheats, on_gpu
from tests.redteam.by_family import Met, by_family

from opforge.backends.shared_code import source_sha256
from opforge.core.evidence.verdict import Pass, Unsupported, Verdict

ROOT = Path(__file__).resolve().parents[2]

HONEST = ("torch_honest", "triton_honest", "cuda_honest")
"""Of rt_double: verified and timed like the cheats, and to be passed."""
LANES = 4
"""Processes for times with guards down."""
DEFECT = re.compile(r"CompilationFailed|(Attribute|Name|Import|ModuleNotFound|Type|Syntax|Index|Value)Error")
"""What says that a cheat was not caught, but broken: it does not compile, or names something that is not there."""
NEEDS = ("torch.cuda", "opforge.runner.worker.device_clocks", "cublas", "device_names", "tf32")
"""Words by which a file says that it needs a GPU."""


@dataclass(frozen=True)
class Task:
    """One question: a cheat with its guard up ("caught") or down ("passes"), or an honest kernel ("honest")."""

    operator: str
    name: str
    question: str

    def key(self) -> str:
        return f"{self.operator}/{self.name} {self.question}"


def path_of(task: Task) -> Path:
    """The file of what a task asks."""
    return next(iter((on_gpu.HOME / task.operator).glob(f"{task.name}.*")))


def planned(patterns: Sequence[str], device: str) -> tuple[list[cheats.Cheat], list[Task], list[Task], list[Task]]:
    """The cheats, what is asked of verdicts, of times with every guard up, and of times with one down."""
    found = [
        cheat
        for cheat in cheats.cheats(on_gpu.HOME)
        if not patterns or any(fnmatch(cheat.name, pattern) for pattern in patterns)
    ]
    if device == "cpu":
        found = [cheat for cheat in found if cheat.mode == "verify" and not _needs_gpu(cheat)]
    verdicts = [cheat for cheat in found if cheat.mode == "verify"]
    times = [cheat for cheat in found if cheat.mode.startswith("time")]
    honest = [] if device == "cpu" or patterns else [Task("rt_double", name, "honest") for name in HONEST]
    cold = [Task(cheat.operator, cheat.name, "cold") for cheat in found if cheat.mode == "cold"]
    return (
        found,
        [Task(cheat.operator, cheat.name, question) for cheat in verdicts for question in ("caught", "passes")],
        [*honest, *(Task(cheat.operator, cheat.name, "caught") for cheat in times), *cold],
        [Task(cheat.operator, cheat.name, "passes") for cheat in times],
    )


def _needs_gpu(cheat: cheats.Cheat) -> bool:
    text = path_of(Task(cheat.operator, cheat.name, "")).read_text(encoding="utf-8")
    return any(word in text for word in NEEDS)


def ask(team: cheats.Team, known: dict[tuple[str, str], cheats.Cheat], task: Task) -> tuple[bool, str]:
    """Whether it is as it has to be, and in which words."""
    if task.question == "cold":
        pinned = on_gpu.pinned_cache(team)
        return all(item.neutralised and item.gains_without for item in pinned), "; ".join(map(str, pinned))
    if task.question == "honest":
        words = on_gpu.honest_time(team, task.name)
        return not words, words or "Pass"
    cheat = known[task.operator, task.name]
    if task.question == "passes":
        verdict = cheats.verdict_without(team, cheat)
        return isinstance(verdict, Pass), f"without {cheat.guard} {_told(verdict)}"
    with cheats.circumstances(cheat) as guards:
        verdict = cheats.verdict_on(team, cheat, team.host(guards))
    words = _told(verdict)
    if isinstance(verdict, Unsupported) or DEFECT.search(words):
        return False, f"the cheat itself does not work here: {words}"
    return not isinstance(verdict, Pass), words


def _told(verdict: Verdict) -> str:
    """A verdict in a line, with its case where it has one."""
    reason = getattr(verdict, "reason", "") or getattr(verdict, "cause", "")
    case = getattr(verdict, "case", None)
    return f"{type(verdict).__name__}{f' in {case.name}' if case else ''}: {reason[:160]}"


def serve(device: str) -> None:
    """A process that answers tasks, a line of JSON each, from stdin, one after another."""
    known = {(cheat.operator, cheat.name): cheat for cheat in cheats.cheats(on_gpu.HOME)}
    with cheats.Team(on_gpu.HOME, device) as team:
        team.host(cheats.ALL)
        for line in sys.stdin:
            task = Task(*json.loads(line))
            began = time.monotonic()
            try:
                holds, words = ask(team, known, task)
            # the boundary to hostile code: what it raises is the answer's reason, and never counts as caught
            except Exception as error:
                holds, words = False, f"{type(error).__name__}: {str(error)[:300]}"
            print(json.dumps([holds, words, round(time.monotonic() - began, 2)]), flush=True)


class Lane:
    """One such process. Ended, it answers that it is ended."""

    def __init__(self, device: str, log: Path) -> None:
        self.log = log.open("a", encoding="utf-8")
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "scripts" / "redteam_gpu.py"), "--serve", "--device", device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )

    def ask(self, task: Task) -> tuple[bool, str, float] | None:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps([task.operator, task.name, task.question]) + "\n")
            self.process.stdin.flush()
            while line := self.process.stdout.readline():
                if line.startswith("["):
                    holds, words, seconds = json.loads(line)
                    return holds, words, seconds
        except (BrokenPipeError, ValueError):
            pass
        return None

    def end(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.close()
            self.process.wait(8)
        except (OSError, subprocess.TimeoutExpired):
            os.killpg(self.process.pid, 9)
            self.process.wait()
        self.process.stdout.close()
        self.log.close()


class Campaign:
    """What was found, by task; lines of the kept file."""

    def __init__(
        self,
        kept: Path | None,
        limit_s: float,
        log: Path,
        device: str,
        say: Callable[[str], None] = lambda words: print(words, flush=True),
    ) -> None:
        self.say = say
        self.began, self.limit_s = time.monotonic(), limit_s
        self.kept, self.log, self.device = kept, log, device
        self.found: dict[str, dict[str, Any]] = {}
        self.lock = Lock()
        if kept is not None and kept.exists():
            for line in kept.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                self.found[entry["key"]] = entry

    def left(self) -> float:
        return self.limit_s - (time.monotonic() - self.began)

    def known(self, task: Task) -> bool:
        """Whether this question was answered, and as it has to be, of this very source."""
        entry = self.found.get(task.key())
        return entry is not None and bool(entry["holds"]) and entry["source"] == source_sha256(path_of(task))

    def note(self, task: Task, answer: tuple[bool, str, float] | None) -> None:
        holds, words, seconds = answer if answer is not None else (False, "its process ended", 0.0)
        entry = {
            "key": task.key(),
            "source": source_sha256(path_of(task)),
            "holds": holds,
            "words": words,
            "seconds": seconds,
        }
        with self.lock:
            self.found[task.key()] = entry
            if self.kept is not None:
                with self.kept.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(entry) + "\n")
            self.say(f"{self.limit_s - self.left():5.0f} s  {seconds:4.1f} s  {task.key()}: {holds}; {words}")

    def through(self, lanes: Sequence[Lane], tasks: Sequence[Task]) -> None:
        """The tasks, each by whichever lane is free, until the limit."""
        waiting = [task for task in tasks if not self.known(task)]

        def work(lane: Lane) -> None:
            while True:
                with self.lock:
                    if not waiting or self.left() < 4:
                        return
                    task = waiting.pop(0)
                self.note(task, lane.ask(task))

        with ThreadPoolExecutor(max(1, len(lanes))) as pool:
            list(pool.map(work, lanes))


def build_all(operators: Sequence[str]) -> None:
    """Compile the CUDA files, 16 at a time: nvcc does the work."""
    from opforge.backends import backend
    from opforge.core.language.errors import OpforgeError
    from opforge.registry import load

    registry = load([on_gpu.HOME])

    def build(task: tuple[str, str]) -> None:
        implementation = registry.implementation(*task)
        try:
            backend("cuda").build(implementation, implementation.default, "cuda")  # type: ignore[attr-defined]
        except OpforgeError as error:
            print(f"{task[0]}/{task[1]}: {error}", flush=True)

    wanted = [
        (name, stem)
        for name in operators
        for stem in registry.operator(name).implementations
        if stem.startswith("cuda_")
    ]
    with ThreadPoolExecutor(os.cpu_count() or 4) as pool:
        list(pool.map(build, wanted))


def report(
    found: dict[str, dict[str, Any]], chosen: Sequence[cheats.Cheat], honest: Sequence[Task], seconds: float
) -> tuple[str, bool]:
    """The table, and whether all is as it has to be."""
    met, silent, needed, missing = [], [], 0, []
    no_need: dict[str, str] = {}
    told: dict[str, str] = {}
    for cheat in chosen:
        place = f"{cheat.operator}/{cheat.name}"
        up = found.get(f"{place} cold" if cheat.mode == "cold" else f"{place} caught")
        down = up if cheat.mode == "cold" else found.get(f"{place} passes")
        if up is None:
            silent.append(place)
        else:
            told[place] = str(up["words"])
            met.append(Met(catalogue=cheat.catalogue, name=place, caught=bool(up["holds"])))
        if down is None:
            missing.append(place)
        elif down["holds"]:
            needed += 1
        else:
            no_need[place] = down["words"]
    refused = [task.name for task in honest if (entry := found.get(task.key())) is not None and not entry["holds"]]
    unasked = [task.name for task in honest if task.key() not in found]
    lines = [by_family(met)] if met else []
    lines += [f"  through: {item.name}: {told[item.name]}" for item in met if not item.caught]
    lines += [
        f"cheats: {len(chosen)}; asked {len(met)}, caught {sum(item.caught for item in met)}; guards needed {needed}",
        f"guard not needed: {', '.join(no_need) or 'none'}",
        *(f"  still caught: {place}: {words}" for place, words in no_need.items()),
        f"not asked: {', '.join(silent) or 'none'}; guard down not asked: {', '.join(missing) or 'none'}",
        f"honest kernels: {len(honest)}; refused: {', '.join(refused) or 'none'}; not asked: "
        f"{', '.join(unasked) or 'none'}",
        f"{seconds:.0f} s",
    ]
    whole = not (silent or missing or no_need or refused or unasked) and all(item.caught for item in met)
    return "\n".join(lines), whole


def conduct(
    campaign: Campaign, patterns: Sequence[str] = (), workers: int = 8
) -> tuple[list[cheats.Cheat], list[Task]]:
    """Ask everything that `campaign` does not know yet; the cheats and the honest kernels that were meant."""
    chosen, verdicts, times, down = planned(patterns, campaign.device)

    def lanes(count: int) -> list[Lane]:
        return [Lane(campaign.device, campaign.log) for _ in range(count)]

    def open_of(tasks: Sequence[Task]) -> int:
        return sum(not campaign.known(task) for task in tasks)

    alone = lanes(1 if open_of([*times, *down]) else 0)
    several = lanes(min(workers, open_of(verdicts)))
    with ThreadPoolExecutor(1) as aside:
        built = aside.submit(build_all, ("rt_double", "rt_product", "rt_total") if campaign.device == "cuda" else ())
        campaign.through(several, verdicts)
        built.result()
    for lane in several[LANES:]:
        lane.end()
    campaign.through(alone, times)
    several = several[:LANES] or lanes(min(LANES, open_of(down)))
    campaign.through(several, down)
    for lane in several:
        lane.end()
    # beside others a clock may be disturbed: alone, nobody is
    campaign.through(alone, [task for task in down if task.key() in campaign.found])
    for lane in alone:
        lane.end()
    return chosen, [task for task in times if task.question == "honest"]


def main() -> int:
    """The command: 0 when everything was asked and is as it has to be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=112.0, help="seconds after which nothing more is begun")
    parser.add_argument("--workers", type=int, default=8, help="processes for verdicts")
    parser.add_argument(
        "--kept", type=Path, help="a file of lines: what it says of the same sources is not asked again"
    )
    parser.add_argument("--log", type=Path, default=Path(os.devnull), help="what the processes write to stderr")
    parser.add_argument("--cheat", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run of what needs no GPU")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    if options.serve:
        serve(options.device)
        return 0
    campaign = Campaign(options.kept, options.limit, options.log, options.device)
    chosen, honest = conduct(campaign, options.cheat, options.workers)
    told, whole = report(campaign.found, chosen, honest, time.monotonic() - campaign.began)
    print(told)
    return int(not whole)
