"""The process that workers are forked from: it has imported the toolchain and has run nothing.

`python -m opforge.runner.worker.forkserver FD` reads "spawn" messages from the parent; each carries the worker's own
socket and the file for its output. A fork costs milliseconds where a new interpreter with torch costs seconds, so every
candidate can have a fresh process. Nothing here runs a kernel, starts a thread pool or touches a device before the
fork.

Where the kernel allows it the server is process 1 of a namespace: when it ends, whatever was started below it ends with
it, however well it hid. Elsewhere it adopts what its workers leave behind and ends that itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import importlib
import importlib.metadata
import importlib.util
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import warnings
from pathlib import Path

from opforge.backends import cache
from opforge.runner.walls import namespaces, processes, sandbox
from opforge.runner.walls.namespaces import outer_pid
from opforge.runner.wire.channel import Closed, receive, send
from opforge.runner.wire.messages import Exited, ServerReady, Spawned
from opforge.runner.wire.protocol import answered, spawn_of
from opforge.runner.worker import sample_requests
from opforge.runner.worker.process import die_with_parent, spawned
from opforge.walls import mounts, privileges

SCRATCH = "OPFORGE_SCRATCH"
END_S = 1.0
"""What workers are given to end with their server: ten times what one takes (forkserver_client.END_LIMIT_S)."""
NOT_INITIALIZED, NO_DEVICE = 3, 100


def spoils_the_device() -> bool:
    """Whether a process forked from this one cannot use the NVIDIA driver that is here: it does not survive a fork."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return False
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(int(ctypes.CDLL("libcuda.so.1").cuInit(0) == NOT_INITIALIZED or _poisoned()))
        except OSError:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0


def drivers_work_inside() -> bool:
    """Whether NVIDIA's driver, where it is here, works in a process namespace with a /proc of its own. It is asked in
    one, and not supposed: elsewhere it
    answers "OS call failed or operation not supported" (304), and every kernel would be refused."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return True
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            if ctypes.CDLL(None).unshare(privileges.CLONE_NEWPID) == 0:
                inside = os.fork()
                if inside == 0:
                    status = 1
                    with contextlib.suppress(BaseException):
                        status = int(
                            not mounts.own_proc() or ctypes.CDLL("libcuda.so.1").cuInit(0) not in (0, NO_DEVICE)
                        )
                    os._exit(status)
                os._exit(os.waitstatus_to_exitcode(os.waitpid(inside, 0)[1]) & 255)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _poisoned() -> bool:
    if "torch" not in sys.modules:
        return False
    from opforge.backends.torch_private import in_bad_fork

    return bool(in_bad_fork())


def spoilt_marker() -> Path:
    """The file that says that what this server is to import initialises the driver, with this interpreter and this
    torch.
    """
    parts = {"preload": os.environ.get("OPFORGE_PRELOAD", "torch"), "python": sys.executable}
    for name in ("torch", "triton", "tilelang"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            parts[name] = importlib.metadata.version(name)
    return cache.cache_root() / "spoilt" / cache.key_of(parts)


def _noticed(_number: int, _frame: object) -> None:
    """A child ended: the wake-up socket says so to the loop."""


class Server:
    """Forks workers and says when they ended."""

    def __init__(self, sock: socket.socket, folder: Path, own: namespaces.Namespaces | None = None) -> None:
        self.sock = sock
        self.folder = folder
        self.own = own
        self.workers: set[int] = set()
        self.firsts: dict[int, int] = {}
        self.wake, theirs = socket.socketpair()
        self.wake.setblocking(False)
        theirs.setblocking(False)
        self.theirs = theirs
        signal.signal(signal.SIGCHLD, _noticed)
        signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        """Until the parent closes the socket."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        poll.register(self.wake, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in poll.poll()]
            if self.wake.fileno() in ready:
                with contextlib.suppress(BlockingIOError):
                    self.wake.recv(4096)
                self.reap()
            if self.sock.fileno() in ready:
                message, fds = receive(self.sock)
                if message.get("do") == "spawn":
                    self.spawn(message, fds)

    def spawn(self, message: dict[str, object], fds: list[int]) -> None:
        limits, guards = spawn_of(message)
        try:
            self.folder.mkdir(exist_ok=True)  # who tidies up a folder of temporary files may have taken it
            scratch = Path(tempfile.mkdtemp(prefix="worker-", dir=self.folder))
            first = self.own.new() if self.own is not None and guards.own_processes else None
            pid = os.fork() if first is None or self.own is None else self.own.fork_into(first[0])
        except OSError as error:
            # a full disk, or no process left: the workers that there are must not end for it
            for received in fds:
                os.close(received)
            send(self.sock, answered(Spawned(reason=f"{error.strerror}")))
            return
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for descriptor in (self.sock, self.wake, self.theirs, *([self.own.sock] if self.own is not None else ())):
                descriptor.close()
            for held in (
                *self.firsts.values(),
                *([self.own.own] if self.own is not None else ()),
                *(first[:1] if first is not None else ()),
            ):
                os.close(held)
            spawned(socket.socket(fileno=fds[0]), (fds[1], fds[2]), scratch, limits, guards)
        self.workers.add(pid)
        if first is not None:
            self.firsts[pid] = first[0]
        for received in fds:
            os.close(received)
        send(self.sock, answered(Spawned(pid=pid, scratch=str(scratch), first=first[1] if first is not None else 0)))

    def reap(self) -> None:
        """Collect what has ended: workers are reported, adopted processes only collected."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, code = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid in self.workers:
                    self.workers.discard(pid)
                    if pid in self.firsts:
                        namespaces.end(self.firsts.pop(pid))
                    send(self.sock, answered(Exited(pid=pid, code=os.waitstatus_to_exitcode(code))))

    def end(self) -> None:
        """End every worker and whatever was adopted."""
        signal.set_wakeup_fd(-1)
        for pid in self.workers:
            processes.kill_group(pid)
        for first in self.firsts.values():
            namespaces.end(first)
        if self.own is not None:
            self.own.close()
        deadline = time.monotonic() + END_S
        with contextlib.suppress(ChildProcessError):
            # a compiler that is still writing would fill the folder again
            while time.monotonic() < deadline:
                if not os.waitpid(-1, os.WNOHANG)[0]:
                    time.sleep(0.01)
        if os.getpid() != 1:
            for _ in range(100):
                left = processes.tree(processes.children(os.getpid()))
                if not left:
                    break
                processes.kill(left)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(-1, 0)
        shutil.rmtree(self.folder, ignore_errors=True)


def main(fd: int) -> None:
    """Serve spawn requests until the parent closes the socket, then end everything that is left."""
    sock = socket.socket(fileno=fd)
    sys.path[:] = [str(Path(entry).resolve()) for entry in sys.path]
    own_processes, own_network = privileges.enter_namespaces() if sandbox.wanted() == "full" else (False, False)
    if own_processes:
        pid = os.fork()
        if pid:
            # this process stays outside the namespace, to be waited for; it holds nothing
            sock.close()
            _, status = os.waitpid(pid, 0)
            os._exit(min(255, abs(os.waitstatus_to_exitcode(status))))
        die_with_parent()
    else:
        privileges.prctl(privileges.PR_SET_CHILD_SUBREAPER, 1)
    own = namespaces.Namespaces() if namespaces.possible() and drivers_work_inside() else None
    helper = [pid for pid in processes.children(outer_pid()) if own is not None]
    # libraries keep idle threads; a worker is forked between messages, when none of them holds a lock that it will want
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
    # what an import makes stays until the end: looking through it for garbage, again and again, takes a tenth of it
    gc.disable()
    # imported before the first fork, so that every worker shares it and starts in milliseconds
    marker = spoilt_marker()
    if marker.exists():
        os.environ["OPFORGE_PRELOAD"] = "torch"
    for name in os.environ.get("OPFORGE_PRELOAD", "torch").split():
        if importlib.util.find_spec(name):
            importlib.import_module(name)
    if os.environ.get("OPFORGE_PRELOAD", "torch") != "torch" and spoils_the_device():
        # what was imported has initialised the driver: begin again, and let each worker import it for itself
        os.environ["OPFORGE_PRELOAD"] = "torch"
        with contextlib.suppress(OSError):
            # what it took to find out, tens of seconds, is not spent a second time
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
        os.set_inheritable(sock.fileno(), True)
        if own is not None:
            own.close()
        os.execv(sys.executable, [sys.executable, "-P", "-m", "opforge.runner.worker.forkserver", str(sock.detach())])
    sample_requests.sampler()  # compiled and loaded before the first fork: every worker has it
    # nor do workers look through it, which would make each of them a copy of its pages
    gc.freeze()
    gc.enable()
    level = sandbox.Level(pid_namespace=own_processes, network_namespace=own_network)
    server = Server(sock, Path(os.environ[SCRATCH]), own)
    try:
        send(sock, answered(ServerReady(pid=outer_pid(), helpers=tuple(helper), level=dataclasses.asdict(level))))
        server.serve()
    except Closed:
        pass
    finally:
        server.end()


if __name__ == "__main__":
    main(int(sys.argv[1]))
