"""The process that workers are forked from: it has imported the toolchain and has run nothing.

`python -m opforge.runner.server FD` reads "spawn" messages from the parent; each carries the worker's own socket and
its stderr. A fork costs milliseconds where a new interpreter with torch costs seconds, so every candidate can have a
fresh process. Nothing here runs a kernel, starts a thread pool or touches a device before the fork.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import signal
import socket
import sys

from opforge.runner.channel import Closed, Late, receive, send
from opforge.runner.executor import Executor

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Ask the kernel to end this process when its parent goes (Linux; elsewhere the closed socket ends it)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)


def work(sock: socket.socket) -> None:
    """Answer messages until the parent closes the socket."""
    executor = Executor()
    while True:
        try:
            message, fds = receive(sock)
            answer = executor.handle(message, fds)
            send(sock, answer)
        except Closed:
            return


def main(fd: int) -> None:
    """Serve spawn requests until the parent closes the socket, then end every worker that is left."""
    sock = socket.socket(fileno=fd)
    # imported before the first fork, so that every worker shares it and starts in milliseconds
    for name in os.environ.get("OPFORGE_PRELOAD", "torch").split():
        if importlib.util.find_spec(name):
            importlib.import_module(name)
    children: set[int] = set()
    server = os.getpid()
    send(sock, {"status": "ready"})
    while True:
        try:
            message, fds = receive(sock, 0.05 if children else None)
        except Late:
            message, fds = {}, []
        except Closed:
            break
        if message.get("do") == "spawn":
            pid = os.fork()
            if pid == 0:
                sock.close()
                os.setsid()
                die_with_parent(server)
                os.dup2(fds[1], 1)
                os.dup2(fds[1], 2)
                worker = socket.socket(fileno=fds[0])
                status = 0
                try:
                    work(worker)
                except BaseException as error:  # the process ends here whatever happens; the parent reads why from stderr
                    os.write(2, f"{type(error).__name__}: {error}\n".encode())
                    status = 70
                os._exit(status)
            children.add(pid)
            for received in fds:
                os.close(received)
            send(sock, {"status": "spawned", "pid": pid})
        for pid in list(children):
            done, code = os.waitpid(pid, os.WNOHANG)
            if done:
                children.discard(pid)
                send(sock, {"status": "exited", "pid": pid, "code": os.waitstatus_to_exitcode(code)})
    for pid in children:
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
