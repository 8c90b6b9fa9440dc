"""How long a worker is waited for before it counts as hung. A hang must cost little, and an honest kernel on a busy
machine must not be called one.

What counts is the time in which a worker could have gone on: not that in which others had the processors it was ready
to use, and not what opforge's own compilers take before any of the kernel's code runs. Who compiles when it is called
may go on as long as compiling shows: processor time is spent.
"""

from __future__ import annotations

import time
from typing import Any

from opforge.runner import processes
from opforge.runner.messages import Bind, Collect, Question, Release, Replay, Run

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
LOOK_S = 0.5
WORKING = 0.2
"""The share of a processor that is work; who only sleeps and wakes has less."""
AT_CALL = ("compile", "tilelang", "triton", "library")
"""Backends whose compilers run at the first call, or when the kernel is bound, on the device itself."""
BOUNDED = (Bind.do, Run.do, Replay.do, Collect.do, Release.do)
"""Questions whose answer is waited for within the allowed time; the others say how long they take, and have the
caller's limit.
"""


class Watchdog:
    """With one worker, over its whole life. `begin` at each request, `late` while an answer is awaited."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.compiles = False
        self.called = False
        self.bounded = False
        self.sealed = False
        self.allowed_s = HANG_S
        self.began = self.looked = self.idle_since = self.kept_waiting_s = self.worked_s = 0.0

    def begin(self, question: Question[Any], arena_bytes: int, limit_s: float) -> None:
        """A request is about to be sent: `limit_s` is what the caller would wait at most."""
        self.bounded = question.do in BOUNDED
        if isinstance(question, Bind):
            name = question.implementation
            # torch.compile's twin of a torch file is called after that
            backend = "compile" if name.startswith("torch_compile") else name.split("_")[0]
            # on a CPU, Triton's interpreter stands for the device, and compiles nothing
            self.compiles = backend in AT_CALL and not (backend == "triton" and question.device == "cpu")
            self.called = False
        first = self.compiles and not self.called
        self.called = self.called or isinstance(question, Run)
        self.allowed_s = min(limit_s, (COMPILE_S if first else HANG_S) + arena_bytes / BYTES_PER_S)
        self._start()

    def _start(self) -> None:
        self.began = self.looked = self.idle_since = time.monotonic()
        self.kept_waiting_s = processes.kept_waiting_s(self.pid)
        self.worked_s = self._processor_s()

    def late(self) -> float | None:
        """Seconds after which it is called late, when it is; None while it may go on."""
        now = time.monotonic()
        if not self.bounded or now - self.looked < LOOK_S:
            return None
        self.looked = now
        if not self.sealed:
            # opforge's own compilers run: none of the kernel's code has
            self.sealed = processes.confinement_of(self.pid)["filtered"]
            self._start()
            return None
        worked_s = self._processor_s()
        if worked_s - self.worked_s > WORKING * LOOK_S:
            self.worked_s, self.idle_since = worked_s, now
        waited_s = processes.kept_waiting_s(self.pid) - self.kept_waiting_s
        # who may compile is given its time as long as it works; who does nothing for as long as a hang takes is one
        allowed_s = self.allowed_s if now - self.idle_since <= HANG_S else min(HANG_S, self.allowed_s)
        # on a machine that is busy with others a hang may cost twice as much, and no more
        return allowed_s if now - self.began - min(waited_s, allowed_s) > allowed_s else None

    def _processor_s(self) -> float:
        return sum(map(processes.processor_s, processes.tree([self.pid])))
