"""The life of a worker, in the process that a server has forked: it answers questions until the parent closes the
socket.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
from pathlib import Path

from opforge.core import spans
from opforge.runner import mounts, sandbox
from opforge.runner.channel import Closed, receive, send
from opforge.runner.executor import Executor
from opforge.runner.guards import Guards, Limits
from opforge.runner.messages import WorkerReady
from opforge.runner.namespaces import outer_pid
from opforge.runner.protocol import answered


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent goes (Linux; elsewhere the closed socket ends it)."""
    parent = os.getppid()
    sandbox.prctl(sandbox.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


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
    send(sock, answered(WorkerReady(pid=pid)))
    while True:
        try:
            message, fds = receive(sock)
            if message.get("spans"):
                spans.record()
            answer = executor.handle(message, fds)
            if message.get("spans"):
                answer = {**answer, "spans": spans.sent()}
            send(sock, {**answer, "nonce": message.get("nonce")})
        except Closed:
            return


def spawned(sock: socket.socket, output: int, scratch: Path, limits: Limits, guards: Guards) -> None:
    """The life of a worker, in the forked process. Does not return."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    die_with_parent()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    status = 0
    try:
        work(sock, scratch, limits, guards)
    # the process ends here whatever happens; the parent reads why from its output
    except BaseException as error:  # noqa: BLE001
        with contextlib.suppress(OSError):
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        status = 70
    os._exit(status)
