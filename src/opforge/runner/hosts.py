"""Where kernels run: in worker processes of their own (the rule), or in this one (debugging, and so recorded)."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol

from opforge.core.errors import EnvironmentLacks
from opforge.runner.channel import Closed, Late, receive, send
from opforge.runner.executor import Executor

STDERR_KEPT = 8000
START_LIMIT_S = 120.0


class WorkerDied(Exception):
    """The worker ended without an answer. `status` is its exit code (negative: a signal), `stderr` the end of what it wrote."""

    def __init__(self, status: int, stderr: str) -> None:
        super().__init__(f"worker ended with status {status}")
        self.status = status
        self.stderr = stderr


class WorkerLate(Exception):
    """No answer within the limit; the worker was ended."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"no answer within {limit_s:g} s")
        self.limit_s = limit_s


class Worker(Protocol):
    """One place where kernels run."""

    def request(self, message: Mapping[str, Any], fds: Sequence[int] = (), limit_s: float = 60.0) -> dict[str, Any]:
        """The worker's answer. Raises WorkerDied or WorkerLate, after which the worker is gone."""

    def close(self) -> None:
        """End it."""


class Host(Protocol):
    """Gives out workers."""

    isolation: str

    def worker(self, environment: Mapping[str, str]) -> Worker:
        """A fresh worker whose process started with these variables."""

    def close(self) -> None:
        """End everything that was started."""


class LocalWorker:
    """This process itself."""

    def __init__(self) -> None:
        self.executor = Executor()

    def request(self, message: Mapping[str, Any], fds: Sequence[int] = (), limit_s: float = 60.0) -> dict[str, Any]:
        return self.executor.handle(message, [os.dup(fd) for fd in fds])

    def close(self) -> None:
        for _, arena, _ in self.executor.launches.values():
            arena.close()
        self.executor.launches.clear()


class InProcess:
    """Kernels run in this process: a crash ends everything. For debuggers; the record says so."""

    isolation = "in-process"

    def worker(self, environment: Mapping[str, str]) -> Worker:
        missing = {name: value for name, value in environment.items() if os.environ.get(name) != value}
        if missing:
            words = " ".join(f"{name}={value}" for name, value in missing.items())
            raise EnvironmentLacks(f"This backend needs {words} in the environment from the start. Run without --in-process, or set it: {words} opforge …")
        return LocalWorker()

    def close(self) -> None:
        return None


class ForkedWorker:
    """A process forked from a server that has the toolchain loaded. It has its own process group, which is killed whole."""

    def __init__(self, server: _Server) -> None:
        self.server = server
        self.sock, theirs = socket.socketpair()
        self.stderr: IO[bytes] = tempfile.TemporaryFile()
        try:
            self.pid = server.spawn(theirs.fileno(), self.stderr.fileno())
        except BaseException:
            self.sock.close()
            self.stderr.close()
            raise
        finally:
            theirs.close()

    def request(self, message: Mapping[str, Any], fds: Sequence[int] = (), limit_s: float = 60.0) -> dict[str, Any]:
        try:
            send(self.sock, message, fds)
            answer, _ = receive(self.sock, limit_s)
        except Late as error:
            self.close()
            raise WorkerLate(limit_s) from error
        except Closed as error:
            # the process may still be running with its socket closed: its exit code is waited for, briefly
            status = self.server.status(self.pid, 2.0)
            stderr = self._stderr()
            self.close()
            raise WorkerDied(-signal.SIGKILL if status is None else status, stderr) from error
        return answer

    def _stderr(self) -> str:
        end = self.stderr.seek(0, os.SEEK_END)
        self.stderr.seek(max(0, end - STDERR_KEPT))
        return self.stderr.read().decode(errors="replace")

    def close(self) -> None:
        if self.sock.fileno() < 0:
            return
        self.sock.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.server.status(self.pid, 5.0)
        self.stderr.close()


class _Server:
    """One forking server: a process with one environment."""

    def __init__(self, environment: Mapping[str, str], python: str) -> None:
        self.sock, theirs = socket.socketpair()
        self.exited: dict[int, int] = {}
        self.lock = threading.Lock()
        # -P keeps the working directory off the module path: a file called torch.py there must not be imported
        self.process = subprocess.Popen(
            [python, "-P", "-m", "opforge.runner.server", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, **environment, **_own_source(python)},
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        try:
            receive(self.sock, START_LIMIT_S)
        except (Closed, Late) as error:
            self.close()
            raise EnvironmentLacks(f"The worker process did not start ({error}). Run `{python} -m opforge.runner.server 0` to see why.") from error

    def spawn(self, sock: int, stderr: int) -> int:
        """Fork a worker; its process id."""
        with self.lock:
            send(self.sock, {"do": "spawn"}, [sock, stderr])
            return int(self._until("spawned", None, START_LIMIT_S)["pid"])

    def status(self, pid: int, limit_s: float) -> int | None:
        """The exit code of a worker, waiting up to `limit_s` for it; None while it runs."""
        with self.lock:
            if pid not in self.exited:
                with contextlib.suppress(Late, Closed):
                    self._until("exited", pid, limit_s)
            return self.exited.get(pid)

    def _until(self, status: str, pid: int | None, limit_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + limit_s
        while True:
            message, _ = receive(self.sock, max(0.001, deadline - time.monotonic()))
            if message["status"] == "exited":
                self.exited[message["pid"]] = message["code"]
            if message["status"] == status and (pid is None or message["pid"] == pid):
                return message

    def close(self) -> None:
        self.sock.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _own_source(python: str) -> dict[str, str]:
    """For another environment's interpreter: where this opforge is, so that only the toolchains are that environment's."""
    if python == sys.executable:
        return {}
    return {"PYTHONPATH": str(Path(__file__).resolve().parent.parent.parent)}


class Isolated:
    """Kernels run in forked worker processes, one environment a server. The parent holds inputs, oracle, clock and verdict.

    python   the interpreter of the workers: that of another virtual environment brings its versions of the toolchains
    """

    isolation = "worker process, guarded shared memory"

    def __init__(self, python: str = sys.executable) -> None:
        self.python = python
        self.servers: dict[tuple[tuple[str, str], ...], _Server] = {}

    def worker(self, environment: Mapping[str, str]) -> Worker:
        key = tuple(sorted(environment.items()))
        server = self.servers.get(key)
        if server is None or server.process.poll() is not None:
            server = self.servers[key] = _Server(environment, self.python)
        return ForkedWorker(server)

    def close(self) -> None:
        for server in self.servers.values():
            server.close()
        self.servers.clear()

    def __enter__(self) -> Isolated:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def bind_message(
    homes: Sequence[Path], operator: str, implementation: str, axes: Mapping[str, Any], dtype: str, scalars: Mapping[str, Any], device: str, config: Any
) -> dict[str, Any]:
    """The message that asks a worker to bind; the arena's description and descriptor go with it."""
    return {
        "do": "bind",
        "homes": [str(home) for home in homes],
        "operator": operator,
        "implementation": implementation,
        "axes": {name: list(value) if isinstance(value, tuple) else value for name, value in axes.items()},
        "dtype": dtype,
        "scalars": dict(scalars),
        "device": device,
        "config": None if config is None else [list(pair) for pair in config.values],
    }
