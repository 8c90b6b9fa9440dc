"""How long a worker is waited for before it counts as hung. A hang must cost little, and an honest kernel on a busy
machine must not be called one.

What counts is the time in which a worker could have gone on: not that in which others had the processors it was ready
to use, and not what opforge's own compilers take before any of the kernel's code runs. A compiler that runs inside of a
call has a limit of its own, as long as compiling shows: processor time is spent. The worker says when one begins and
ends (backends/compile_phase.py).
"""

from __future__ import annotations

import time
from typing import Any

from opforge.runner.walls import processes
from opforge.runner.wire.messages import Bind, Collect, Question, Release, Replay, Run, Spare

HANG_S = 30.0
"""Seven times the slowest honest call of the operators' cases: 4 s on 2 cores, an interpreted one. A verification that
meets a hang ends after 31 to 79 s
in tests (tests/test_walls.py): the time in which others had the processors is given on top, up to as much again."""
COMPILE_S = 120.0
"""In-process compilers (Inductor, Triton, TileLang) take up to 40 s for one kernel on 2 cores."""
BYTES_PER_S = 64 << 20
"""A call over much memory may take longer: what a single thread writes, with every page faulted in, is ten times as
fast.
"""
INTERPRETED_S = 100.0
"""Processor time of one interpreted call that gets on. An interpreter is a thousand times as slow as what it stands
for: a kernel that is merely slow in it is not run, and one that does not get on for HANG_S of processor time hangs.
"""
LOOK_S = 0.5
TOLD_S = 2.0
"""A wait that is shorter is not worth a word."""
WORKING = 0.2
"""The share of a processor that is work; who only sleeps and wakes has less."""
NOT_AT_CALL = ("torch", "cpp", "cuda")
"""Backends that compile before any of the kernel's code runs, or nothing: that they compile in a call is not believed.
"""
BOUNDED = (Bind.do, Run.do, Replay.do, Collect.do, Release.do, Spare.do)
"""Questions whose answer is waited for within the allowed time; the others say how long they take, and have the
caller's limit.
"""


class _Stretch:
    """Seconds that a worker has spent in one phase of a request, running or compiling; those in which others had its
    processor are counted beside them.
    """

    def __init__(self, allowed_s: float = HANG_S) -> None:
        self.allowed_s = allowed_s
        self.took_s = self.waited_s = 0.0

    @property
    def limit_s(self) -> float:
        """When it is ended: on a machine that is busy with others a hang may cost twice as much, and no more."""
        return self.allowed_s + min(self.waited_s, self.allowed_s)


class Watchdog:
    """With one worker, over its whole life. `begin` at each request, `late` while an answer is awaited, `told` when the
    worker says that a compiler begins or has ended. `compiling` is the phase that it is in, `compiled_s` what compilers
    took in all requests together, seconds.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.what = ""
        self.compiles = self.compiling = self.bounded = self.sealed = self.interpreted = False
        self.got_on_s: float | None = None
        self.begun_s = 0.0
        self.limit_s = self.compiled_s = 0.0
        self.stretches = {False: _Stretch(), True: _Stretch()}
        self.looked = self.idle_since = self.kept_waiting_s = 0.0
        self.worked_s: float | None = None

    def begin(self, question: Question[Any], arena_bytes: int, limit_s: float) -> None:
        """A request is about to be sent: `limit_s` is what the caller would wait at most."""
        self.bounded = question.do in BOUNDED
        if isinstance(question, Bind):
            name = question.implementation
            self.what = f"{question.operator} {name}"
            # torch.compile's twin of a torch file is called after that; on a CPU, Triton's interpreter stands for the
            # device, and compiles nothing
            backend = "compile" if name.startswith("torch_compile") else name.split("_")[0]
            self.interpreted = backend == "triton" and question.device == "cpu"
            self.compiles = backend not in NOT_AT_CALL and not self.interpreted
        self.limit_s = limit_s
        more_s = arena_bytes / BYTES_PER_S
        self.stretches = {
            compiling: _Stretch(min(limit_s, allowed_s + more_s))
            for compiling, allowed_s in ((False, HANG_S), (True, COMPILE_S))
        }
        self.compiling = False
        self._start()

    def _start(self) -> None:
        self.looked = self.idle_since = self.since = time.monotonic()
        self.kept_waiting_s = processes.kept_waiting_s(self.pid)
        # asked at the first look: most requests are answered before
        self.worked_s = self.got_on_s = None

    def told(self, compiling: bool) -> None:
        """The worker says that a compiler runs from now on, or none any more. Each phase goes on where it was left:
        nobody gets a new limit by telling often.
        """
        if self.interpreted:
            # a program of the grid, or an iteration of a loop, has ended
            self.got_on_s = self._processor_s()
            return
        self._count()
        self.compiling = compiling and self.compiles

    def slow(self) -> bool:
        """Whether it is an interpreter that gets on, and nothing says that the kernel hangs."""
        return self.interpreted and self.got_on_s is not None and self._processor_s() - self.got_on_s <= HANG_S

    def _count(self) -> _Stretch:
        now, kept_waiting_s = time.monotonic(), processes.kept_waiting_s(self.pid)
        stretch = self.stretches[self.compiling]
        stretch.took_s += now - self.since
        self.compiled_s += now - self.since if self.compiling else 0.0
        stretch.waited_s += kept_waiting_s - self.kept_waiting_s
        self.since, self.kept_waiting_s = now, kept_waiting_s
        return stretch

    def late(self) -> float | None:
        """Seconds after which it is called late, when it is; None while it may go on."""
        now = time.monotonic()
        if not self.bounded or now - self.looked < LOOK_S:
            return None
        self.looked = now
        if not self.sealed:
            # opforge's own compilers run: none of the kernel's code has
            self.sealed = processes.confinement_of(self.pid)["filtered"]
            if self.sealed:
                self._start()
            return None
        if processes.stopped(self.pid):
            # by somebody: it can do nothing for it
            self.since = self.idle_since = now
            return None
        worked_s = self._processor_s()
        if self.worked_s is None:
            self.worked_s = self.begun_s = worked_s
        elif worked_s - self.worked_s > WORKING * LOOK_S:
            self.worked_s, self.idle_since = worked_s, now
        elif worked_s < self.worked_s:
            # a compiler that it started has ended, and its time is counted no more: what others do from now on is work
            self.worked_s = worked_s
        stretch = self._count()
        if self.interpreted and self.got_on_s is not None and now - self.idle_since <= HANG_S:
            # by the processor time that it had
            hangs = worked_s - self.got_on_s > HANG_S
            return HANG_S if hangs else INTERPRETED_S if worked_s - self.begun_s > INTERPRETED_S else None
        # who compiles is given its time as long as it works; who does nothing for as long as a hang takes is one
        allowed_s = stretch.allowed_s if now - self.idle_since <= HANG_S else min(HANG_S, stretch.allowed_s)
        return allowed_s if stretch.took_s - min(stretch.waited_s, allowed_s) > allowed_s else None

    def words(self) -> str:
        """What is waited for, how long it has taken and when it is ended: "doubled triton_flat running for 12 s; ended
        at 30 s". "" where nothing of that is known, or it has just begun. Any thread may ask.
        """
        stretch = self.stretches[self.compiling]
        took_s = time.monotonic() - self.since + (stretch.took_s if self.sealed else 0.0)
        if not self.bounded or took_s < TOLD_S:
            return ""
        doing, limit_s = "running" if not self.compiling else "compiling", min(stretch.limit_s, self.limit_s)
        if not self.sealed:
            # the first of its questions: it has the caller's limit, from when that was asked
            doing, limit_s = "compiling", self.limit_s
        elif self.slow():
            doing, limit_s = "interpreted", min(INTERPRETED_S, self.limit_s)
        return f"{self.what} {doing} for {took_s:.0f} s; ended at {limit_s:.0f} s"

    def _processor_s(self) -> float:
        return sum(map(processes.processor_s, processes.tree([self.pid])))
