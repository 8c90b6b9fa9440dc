"""The process that workers are forked from: it has imported the toolchain and has run nothing.

`python -m opforge.runner.server FD` reads "spawn" messages from the parent; each carries the worker's own socket and
the file for its output. A fork costs milliseconds where a new interpreter with torch costs seconds, so every candidate
can have a fresh process. Nothing here runs a kernel, starts a thread pool or touches a device before the fork.

Where the kernel allows it the server is process 1 of a namespace: when it ends, whatever was started below it ends with
it, however well it hid. Elsewhere it adopts what its workers leave behind and ends that itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib
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

from opforge.runner import processes, sandbox
from opforge.runner.channel import Closed, receive, send
from opforge.runner.executor import Executor
from opforge.runner.guards import Guards, Limits

SCRATCH = "OPFORGE_SCRATCH"
END_S = 1.0
NOT_INITIALIZED = 3


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent goes (Linux; elsewhere the closed socket ends it)."""
    parent = os.getppid()
    sandbox.prctl(sandbox.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


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


def _poisoned() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch._C, "_cuda_isInBadFork") and bool(torch._C._cuda_isInBadFork())


def outer_pid() -> int:
    """This process's id as the parent sees it: /proc belongs to the namespace outside."""
    try:
        return int(str(Path("/proc/self").readlink()))
    except (OSError, ValueError):
        return os.getpid()


def work(sock: socket.socket, scratch: Path, limits: Limits, guards: Guards) -> None:
    """Answer messages until the parent closes the socket."""
    os.chdir(scratch)
    for name in ("HOME", "TMPDIR"):
        os.environ[name] = str(scratch)
    tempfile.tempdir = None
    executor = Executor(scratch=scratch, limits=limits, guards=guards)
    send(sock, {"status": "here", "pid": outer_pid()})
    while True:
        try:
            message, fds = receive(sock)
            answer = executor.handle(message, fds)
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
    except BaseException as error:  # noqa: BLE001 - the process ends here whatever happens; the parent reads why from its output
        with contextlib.suppress(OSError):
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        status = 70
    os._exit(status)


def _noticed(_number: int, _frame: object) -> None:
    """A child ended: the wake-up socket says so to the loop."""


class Server:
    """Forks workers and says when they ended."""

    def __init__(self, sock: socket.socket, folder: Path) -> None:
        self.sock = sock
        self.folder = folder
        self.workers: set[int] = set()
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
        limits = Limits(**message["limits"])  # type: ignore[arg-type]
        guards = Guards.from_lowered(message["lowered"])  # type: ignore[arg-type]
        try:
            self.folder.mkdir(exist_ok=True)  # who tidies up a folder of temporary files may have taken it
            scratch = Path(tempfile.mkdtemp(prefix="worker-", dir=self.folder))
            pid = os.fork()
        except OSError as error:
            # a full disk, or no process left: the workers that there are must not end for it
            for received in fds:
                os.close(received)
            send(self.sock, {"status": "spawned", "reason": f"{error.strerror}"})
            return
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for descriptor in (self.sock, self.wake, self.theirs):
                descriptor.close()
            spawned(socket.socket(fileno=fds[0]), fds[1], scratch, limits, guards)
        self.workers.add(pid)
        for received in fds:
            os.close(received)
        send(self.sock, {"status": "spawned", "pid": pid, "scratch": str(scratch)})

    def reap(self) -> None:
        """Collect what has ended: workers are reported, adopted processes only collected."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, code = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid in self.workers:
                    self.workers.discard(pid)
                    send(self.sock, {"status": "exited", "pid": pid, "code": os.waitstatus_to_exitcode(code)})

    def end(self) -> None:
        """End every worker and whatever was adopted."""
        signal.set_wakeup_fd(-1)
        for pid in self.workers:
            processes.kill_group(pid)
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
    own_processes, own_network = sandbox.enter_namespaces() if sandbox.wanted() == "full" else (False, False)
    if own_processes:
        pid = os.fork()
        if pid:
            # this process stays outside the namespace, to be waited for; it holds nothing
            sock.close()
            _, status = os.waitpid(pid, 0)
            os._exit(min(255, abs(os.waitstatus_to_exitcode(status))))
        die_with_parent()
    else:
        sandbox.prctl(sandbox.PR_SET_CHILD_SUBREAPER, 1)
    # libraries keep idle threads; a worker is forked between messages, when none of them holds a lock that it will want
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
    # imported before the first fork, so that every worker shares it and starts in milliseconds
    for name in os.environ.get("OPFORGE_PRELOAD", "torch").split():
        if importlib.util.find_spec(name):
            importlib.import_module(name)
    if os.environ.get("OPFORGE_PRELOAD", "torch") != "torch" and spoils_the_device():
        # what was imported has initialised the driver: begin again, and let each worker import it for itself
        os.environ["OPFORGE_PRELOAD"] = "torch"
        os.set_inheritable(sock.fileno(), True)
        os.execv(sys.executable, [sys.executable, "-P", "-m", "opforge.runner.server", str(sock.detach())])
    level = sandbox.Level(pid_namespace=own_processes, network_namespace=own_network)
    server = Server(sock, Path(os.environ[SCRATCH]))
    try:
        send(sock, {"status": "ready", "pid": outer_pid(), "level": dataclasses.asdict(level)})
        server.serve()
    except Closed:
        pass
    finally:
        server.end()


if __name__ == "__main__":
    main(int(sys.argv[1]))
