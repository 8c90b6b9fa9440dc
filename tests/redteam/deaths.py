"""What the death of a worker costs a run: killed when it is newborn, while it compiles, runs, is timed or answers, each
time in a bench of two kernels, whose other one must get its verdict and its time all the same.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.redteam.cheats import BRIEF, PLAN

from opforge.core.evidence.record import Record
from opforge.core.evidence.verdict import Pass
from opforge.core.language.errors import EnvironmentLacks
from opforge.registry import Home, Registry
from opforge.runner import Isolated
from opforge.runner.parent.client import ForkedWorker
from opforge.runner.parent.forkserver_client import ServerProcess
from opforge.runner.walls import processes
from opforge.runner.wire.messages import Bind
from opforge.workbench import BenchOptions, bench

LIMIT_S = 5.0
"""What a run may lose by a worker's death, beyond its own work: issue 20."""
HUNG_S = 30.0
"""No other process's work explains so much: it is not asked again."""
TRIES = 3
"""Pairs of runs, one with a death, one without. A busy machine makes one of them long; a death that costs much, all."""
SOON_S = 0.003
"""After a question was sent: a call of the guest takes 5 ms, so its answer is not there yet."""

DEFINITION = '''"""y = 2 x, of a home where workers are killed."""
from opforge.core.operator import Case, Operator, TensorSpec, Workload

operator = Operator(
    name="mortal", about="y = 2 x",
    inputs=(TensorSpec(name="x", shape="n"),), outputs=(TensorSpec(name="y", shape="n"),),
    reference=lambda x: 2 * x, flops="n", dtypes=("float32",),
    cases=(Case(name="small", axes={"n": 64}, why="small"), Case(name="odd", axes={"n": 67}, why="odd")),
    workloads=(Workload(name="one", axes={"n": 4096}, source="made up", scale="laptop"),),
    implementations=("NAME", "torch_honest"),
)
'''
HONEST = "def run(x):\n    return 2 * x\n"
GUEST = "import time\n\n\ndef run(x):\n    time.sleep(0.005)\n    return 2 * x\n"
AT_IMPORT = "import time\n\ntime.sleep(0.3)\n\n\ndef run(x):\n    time.sleep(0.005)\n    return 2 * x\n"
IN_PART = """import os
import signal

CALLS = []


def run(x):
    CALLS.append(1)
    if len(CALLS) == CALL:
        sockets = [fd for fd in range(3, 40) if os.path.exists(f"/proc/self/fd/{fd}")
                   and "socket" in os.readlink(f"/proc/self/fd/{fd}")]
        CHILD
        for fd in sockets:
            os.write(fd, PART)
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * x
"""
COMPILED = """// MARK
#include "opforge/elementwise/host.h"

namespace {
void doubled(opforge::TensorView x, opforge::TensorView y) {
  const float* from = opforge::data<const float>(x);
  float* to = opforge::data<float>(y);
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = 2.0f * from[i];
}
}  // namespace

OPFORGE_EXPORT(run, doubled)
"""
HALF = r"b'\x00\x00\x10\x00{'"
"""The first bytes of an answer that would be 4 KiB long."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """When a worker is killed: before, during or after the `nth` question of a kind; or "born", before it has said a
    word. With `do` "" the kernel does it itself.
    """

    name: str
    do: str = ""
    nth: int = 1
    phase: str = "during"
    kernel: str = "torch_guest"
    text: str = GUEST
    soon_s: float = SOON_S


def _in_part(call: int, child: str, part: str) -> str:
    return IN_PART.replace("CALLS) == CALL", f"CALLS) == {call}").replace("CHILD", child).replace("PART", part)


HOLDER = "os.fork() or __import__('time').sleep(60)"
"""A child that keeps the worker's socket open."""
MOMENTS = (
    Moment(name="newborn", do="spawn", phase="born"),
    Moment(name="newborn, the second worker", do="spawn", nth=2, phase="born"),
    Moment(name="before its first question", do="bind", phase="before"),
    Moment(name="while it imports", do="bind", text=AT_IMPORT, soon_s=0.1),
    Moment(name="while it compiles", do="bind", kernel="cpp_guest", text=COMPILED, soon_s=0.3),
    Moment(name="after it was bound", do="bind", phase="after"),
    Moment(name="before a case", do="run", phase="before"),
    Moment(name="in its first case", do="run"),
    Moment(name="in its second case", do="run", nth=2),
    Moment(name="after a case", do="run", phase="after"),
    Moment(name="while the clocks are looked at", do="overhead", soon_s=0.0),
    Moment(name="before it is timed", do="sample", phase="before"),
    Moment(name="in the first sample", do="sample"),
    Moment(name="while it is timed", do="sample", nth=6),
    Moment(name="after a sample", do="sample", nth=3, phase="after"),
    Moment(name="in the audit", do="run", nth=4),
    Moment(name="while a launch is released", do="release", phase="before"),
    Moment(name="half an answer", text=_in_part(2, "pass", HALF)),
    Moment(name="half a length", text=_in_part(2, "pass", r"b'\x00\x00'")),
    Moment(name="half an answer, its child listens", text=_in_part(2, HOLDER, HALF)),
    Moment(name="no answer, its child listens", text=_in_part(2, HOLDER, "b''")),
)


@dataclass(kw_only=True)
class Killer:
    """Kills one worker of the guest's at a moment."""

    moment: Moment
    armed: bool
    asked: int = 0
    done: bool = False
    guests: set[int] = field(default_factory=set)

    def strike(self, pid: int, soon_s: float = 0.0) -> None:
        """Now, or a little later: by then the worker has the question."""
        self.done = True

        def kill() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

        if soon_s:
            threading.Timer(soon_s, kill).start()
        else:
            kill()

    def due(self, do: str) -> bool:
        """Whether this question is the one."""
        if not self.armed or self.done or do != self.moment.do:
            return False
        self.asked += 1
        return self.asked == self.moment.nth

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """While this lasts, one worker is killed."""
        moment, request, spawn = self.moment, ForkedWorker.request, ServerProcess.spawn

        def requested(worker: ForkedWorker, question: Any, *rest: Any, **named: Any) -> Any:
            if isinstance(question, Bind) and question.implementation == moment.kernel:
                self.guests.add(worker.pid)
            due = worker.pid in self.guests and self.due(question.do)
            if due and moment.phase != "after":
                self.strike(worker.pid, moment.soon_s if moment.phase == "during" else 0.0)
            answer = request(worker, question, *rest, **named)
            if due and moment.phase == "after":
                self.strike(worker.pid)
            return answer

        def spawned(server: ServerProcess, *rest: Any, **named: Any) -> Any:
            if moment.phase != "born" or not self.due("spawn"):
                return spawn(server, *rest, **named)
            known, stop = set(processes.children(server.pid)), threading.Event()

            def hunt() -> None:
                while not stop.is_set():
                    found = set(processes.children(server.pid)) - known
                    processes.kill(found)
                    if found:
                        return

            hunter = threading.Thread(target=hunt)
            hunter.start()
            self.done = True
            try:
                return spawn(server, *rest, **named)
            finally:
                stop.set()
                hunter.join()

        with patch.object(ForkedWorker, "request", requested), patch.object(ServerProcess, "spawn", spawned):
            yield


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What a death at a moment, by its name, cost: seconds beyond a run of the other kernel alone, of each pair;
    whether a worker was killed; what kept the other kernel from its verdict and its time, "" where nothing did.
    """

    name: str
    seconds: tuple[float, ...]
    killed: bool
    other: str

    @property
    def holds(self) -> bool:
        return self.killed and not self.other and min(self.seconds) <= LIMIT_S and max(self.seconds) <= HUNG_S


def losses(folder: Path, moments: Sequence[Moment] = MOMENTS) -> Iterator[Loss]:
    """For each moment pairs of runs, one with a death and one of the other kernel alone, until one pair is within
    LIMIT_S. What the kernel itself did until its worker's death counts as lost, too.
    """
    with Isolated() as host:
        _run(host, folder / "first", Moment(name="none"), alone=True)
        for place, moment in enumerate(moments):
            seconds: list[float] = []
            killed, other = True, ""
            for attempt in range(TRIES):
                home = folder / f"{place}_{attempt}"
                undisturbed, _, alone = _run(host, home / "quiet", moment, alone=True)
                took, was_killed, beside = _run(host, home / "killed", moment, alone=False)
                seconds.append(took - undisturbed)
                killed = killed and was_killed
                other = other or alone or beside
                if seconds[-1] <= LIMIT_S or seconds[-1] > HUNG_S:
                    break
            yield Loss(name=moment.name, seconds=tuple(seconds), killed=killed, other=other)


def _run(host: Isolated, home: Path, moment: Moment, *, alone: bool) -> tuple[float, bool, str]:
    """Seconds of a bench, whether a worker was killed, and why the other kernel was not right or not timed ("": it
    was). `alone`: of the other kernel only, and nobody is killed.
    """
    place = home / "mortal"
    place.mkdir(parents=True)
    suffix = ".cpp" if moment.kernel.startswith("cpp") else ".py"
    # what was compiled before would be found again
    (place / f"{moment.kernel}{suffix}").write_text(moment.text.replace("MARK", uuid.uuid4().hex))
    (place / "torch_honest.py").write_text(HONEST)
    (place / "op.py").write_text(DEFINITION.replace("NAME", moment.kernel))
    registry = Registry((Home(home, "red team"),))
    killer = Killer(moment=moment, armed=not alone)
    names = ("torch_honest",) if alone else (moment.kernel, "torch_honest")
    options = BenchOptions(device="cpu", implementations=names, plan=PLAN, effort=BRIEF)
    records: list[Record] = []
    began = time.monotonic()
    # there is no store of adequate tolerances here; and a worker that could not be had is said when all is done
    with (
        patch("opforge.workbench.bench.ensure_adequate", lambda operator: None),
        contextlib.suppress(EnvironmentLacks),
        killer.at_work(),
    ):
        records.extend(bench(registry, ["mortal"], options, host))
    took = time.monotonic() - began
    mine = [record for record in records if record.implementation == moment.kernel]
    other = [record for record in records if record.implementation == "torch_honest"]
    killed = killer.done if moment.do else not any(isinstance(record.verdict, Pass) for record in mine)
    right = any(isinstance(record.verdict, Pass) and record.timing is not None for record in other)
    words = "; ".join(f"{type(item.verdict).__name__} {getattr(item.verdict, 'reason', '')}" for item in other)
    return took, killed, "" if right else words or "no record"
