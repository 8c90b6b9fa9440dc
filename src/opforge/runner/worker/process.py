"""The life of a worker, in the process that a server has forked: it answers questions until the parent closes the
socket.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opforge.backends import compile_phase
from opforge.core.language import spans
from opforge.runner.walls.guards import Guards, Limits
from opforge.runner.walls.namespaces import outer_pid
from opforge.runner.wire.channel import Closed, receive, send
from opforge.runner.wire.messages import TIMED, Phase, Run, WorkerReady
from opforge.runner.wire.protocol import answered
from opforge.runner.wire.standard_output import OwnOutput
from opforge.runner.worker.executor import Executor
from opforge.walls import mounts
from opforge.walls.privileges import die_with


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent goes (Linux; elsewhere the closed socket ends it)."""
    die_with(os.getppid())


class _Phases:
    """Tells the parent when a compiler begins and ends, from when a question has come until its answer is sent."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        # compilers may run on other threads: nothing of theirs may come into the middle of an answer, or after it
        self.lock = threading.Lock()
        self.nonce: Any = None
        self.called: set[int] = set()
        compile_phase.listen(self.told)

    def told(self, compiling: bool) -> None:
        with self.lock, contextlib.suppress(Closed):
            if self.nonce is not None:
                send(self.sock, {**answered(Phase(compiling=compiling)), "nonce": self.nonce})

    def asked(self, message: Mapping[str, Any]) -> None:
        """A question has come."""
        compile_phase.all_ended()
        self.nonce = message.get("nonce")
        if message.get("do") == Run.do and message["launch"] not in self.called:
            self.called.add(message["launch"])
            if compile_phase.unseen():
                # a compiler that says nothing may be all that a first call waits for
                compile_phase.began()

    def answer(self, message: Mapping[str, Any]) -> None:
        """Send the answer; nothing is told of compilers any more."""
        with self.lock:
            nonce, self.nonce = self.nonce, None
            send(self.sock, {**message, "nonce": nonce})


def work(sock: socket.socket, scratch: Path, limits: Limits, guards: Guards) -> None:
    """Answer messages until the parent closes the socket."""
    os.chdir(scratch)
    for name in ("HOME", "TMPDIR"):
        os.environ[name] = str(scratch)
    tempfile.tempdir = None
    pid = outer_pid()
    if os.getppid() == 0:
        # in a namespace of its own, and no code of a kernel has run
        mounts.own_proc()
    executor = Executor(scratch=scratch, limits=limits, guards=guards)
    phases = _Phases(sock)
    own_output = OwnOutput()
    send(sock, answered(WorkerReady(pid=pid)))
    while True:
        try:
            message, fds = receive(sock)
            if message.get("spans"):
                spans.record()
            phases.asked(message)
            timed = message.get("do") in TIMED
            if timed:
                own_output.by_line(False)
            answer = executor.handle(message, fds)
            own_output.flush()
            if timed:
                own_output.by_line(True)
            if message.get("spans"):
                answer = {**answer, "spans": spans.sent()}
            phases.answer(answer)
        except Closed:
            return


def spawned(sock: socket.socket, output: tuple[int, int], scratch: Path, limits: Limits, guards: Guards) -> None:
    """The life of a worker, in the forked process. Does not return."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    die_with_parent()
    for number, file in enumerate(output, 1):
        os.dup2(file, number)
        os.close(file)
    status = 0
    try:
        work(sock, scratch, limits, guards)
    # the process ends here whatever happens; the parent reads why from its output
    except BaseException as error:  # noqa: BLE001
        with contextlib.suppress(OSError):
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        status = 70
    os._exit(status)
