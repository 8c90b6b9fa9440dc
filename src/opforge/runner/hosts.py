"""Where kernels run: in worker processes of their own (the rule), or in this one (debugging, and so recorded)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import site
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from opforge.backends.cache import cache_root
from opforge.core.errors import EnvironmentLacks, NotNow
from opforge.runner import processes
from opforge.runner.channel import Closed, Late, close_all, receive, send
from opforge.runner.executor import Executor
from opforge.runner.guards import ALL, Guards, Limits, default_limits
from opforge.runner.sandbox import Level, environment_for_workers

STDERR_KEPT = 8000
START_LIMIT_S = 300.0
END_LIMIT_S = 5.0
RELIEF = "Run the command again when less runs beside it; see what a process may use with: ulimit -a"
ANSWERS = ("bound", "rejected", "lacks", "failed", "ok", "unfit")


NEEDED = {
    ("bind", "bound"): ("launch",),
    ("sample", "ok"): ("samples", "batch"),
    ("launch_cost", "ok"): ("samples",),
    ("overhead", "ok"): ("samples", "step", "threads", "cpus"),
    ("work", "ok"): ("pieces", "busy"),
}
"""What an answer of this status to this question holds; any other that is not "ok" holds a reason."""

SHAPES: dict[str, Any] = {"launch": int, "batch": int, "threads": int, "cpus": int, "confined": int, "later": bool, "pieces": int, "busy": float, "reason": str, "trace": str}
NUMBERS = ("launch", "batch", "threads", "cpus", "confined", "pieces", "busy", "step", "event_step", "warm_s", "cold_s")
WORDS_KEPT = 1 << 14


class WorkerDied(Exception):
    """The worker ended without an answer. `status` is its exit code (negative: a signal), `stderr` the end of what it wrote."""

    def __init__(self, status: int, stderr: str) -> None:
        super().__init__(f"worker ended with status {status}")
        self.status = status
        self.stderr = stderr


class Outsized(Exception):
    """The worker took more memory or started more processes than it may."""


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
    """Gives out workers. `isolation` says what is in force around them, for the record."""

    guards: Guards

    @property
    def isolation(self) -> str:
        """What is in force, in words."""

    def worker(self, environment: Mapping[str, str]) -> Worker:
        """A fresh worker whose process started with these variables. Raises NotNow, or EnvironmentLacks for what must be there first."""

    def close(self) -> None:
        """End everything that was started."""


class LocalWorker:
    """This process itself."""

    def __init__(self, guards: Guards = ALL) -> None:
        self.executor = Executor(guards=guards)

    def request(self, message: Mapping[str, Any], fds: Sequence[int] = (), limit_s: float = 60.0) -> dict[str, Any]:
        return self.executor.handle(message, [os.dup(fd) for fd in fds])

    def close(self) -> None:
        for _, arena, _ in self.executor.launches.values():
            arena.close()
        self.executor.launches.clear()


class InProcess:
    """Kernels run in this process: a crash ends everything. For debuggers; the record says so."""

    isolation = "in-process: nothing is isolated"

    def __init__(self, guards: Guards = ALL) -> None:
        self.guards = guards

    def worker(self, environment: Mapping[str, str]) -> Worker:
        missing = {name: value for name, value in environment.items() if os.environ.get(name) != value}
        if missing:
            words = " ".join(f"{name}={value}" for name, value in missing.items())
            raise EnvironmentLacks(f"This backend needs {words} in the environment from the start. Run without --in-process, or set it: {words} opforge …")
        return LocalWorker(self.guards)

    def close(self) -> None:
        return None


class ForkedWorker:
    """A process forked from a server that has the toolchain loaded, with a process group, a folder and limits of its own.

    Whatever it sends is treated as foreign: an answer that is malformed, or not to the question asked, is the end of it.
    It is stopped (SIGSTOP) whenever nothing is asked of it, so that no thread of it works while the clock of another runs
    or after its own answer was taken.
    """

    def __init__(self, server: _Server, limits: Limits, guards: Guards) -> None:
        self.server = server
        self.guards = guards
        self.limits = limits
        self.sock, theirs = socket.socketpair()
        # a file in memory without a name: nothing is left behind, and its size is watched
        self.output = _nameless_file()
        self.pid = self.inner = 0
        self.arena_bytes = 0
        self.scratch = ""
        try:
            self.inner, self.scratch, self.pid = server.spawn(theirs.fileno(), self.output, self.sock, limits, guards)
            self.born_bytes = processes.memory_bytes(self.pid)
            self._stop()
        except BaseException:
            self.sock.close()
            os.close(self.output)
            raise
        finally:
            theirs.close()

    def request(self, message: Mapping[str, Any], fds: Sequence[int] = (), limit_s: float = 60.0) -> dict[str, Any]:
        nonce = secrets.randbits(52)
        self.arena_bytes += int(message["arena"]["size"]) if "arena" in message else 0
        self._go()
        try:
            send(self.sock, {**message, "nonce": nonce}, fds)
            answer, unasked = receive(self.sock, limit_s, self._watch)
            self._stop()
            close_all(unasked)
            problem = _malformed(str(message["do"]), answer, nonce if self.guards.nonce else None) or (self._left_behind() if self.guards.children else None)
        except Late as error:
            self.close()
            raise WorkerLate(limit_s) from error
        except Outsized as error:
            self.close()
            raise WorkerDied(-signal.SIGKILL, str(error)) from error
        except Closed as error:
            # the process may still be running with its socket closed: its exit code is waited for, briefly
            status = self.server.status(self.inner, END_LIMIT_S)
            said = self._said()
            ended = self.server.closed
            self.close()
            if ended:
                raise NotNow("The process that workers come from was ended while this one ran, and it with it. Run the command again.") from error
            raise WorkerDied(-signal.SIGKILL if status is None else status, said) from error
        if problem is not None:
            self.close()
            raise WorkerDied(-signal.SIGKILL, problem)
        if "confined" in answer:
            self.server.level = replace(self.server.level, landlock=answer["confined"])
        return answer

    def processor_s(self) -> float:
        """Seconds that the worker and everything it started have spent on processors."""
        return sum(map(processes.processor_s, processes.tree([self.pid])))

    def threads(self) -> int:
        """How many threads the worker has now."""
        return processes.threads(self.pid)

    def _go(self) -> None:
        if self.guards.freeze:
            processes.kill_group(self.pid, signal.SIGCONT)

    def _stop(self) -> None:
        if self.guards.freeze:
            processes.kill_group(self.pid, signal.SIGSTOP)

    def _watch(self) -> None:
        """While an answer is awaited: is the worker within its limits? Raises Outsized."""
        family = processes.tree([self.pid, *self.server.adopted()])
        if len(family) - 1 > self.limits.processes:
            raise Outsized(f"it started {len(family) - 1} processes; {self.limits.processes} are allowed")
        # each process was born with the server's memory, and may map every arena
        taken = sum(map(processes.memory_bytes, family)) - (self.born_bytes + self.arena_bytes) * len(family)
        if taken > self.limits.memory_bytes:
            raise Outsized(f"it took {taken >> 20} MiB of memory; {self.limits.memory_bytes >> 20} MiB are allowed")
        if os.fstat(self.output).st_size > self.limits.flood_bytes:
            with contextlib.suppress(OSError):
                os.ftruncate(self.output, 0)

    def _left_behind(self) -> str | None:
        others = [pid for pid in (*processes.tree(processes.children(self.pid)), *self.server.adopted()) if processes.alive(pid)]
        return f"{len(others)} processes were left running when it answered; a call must have finished when it returns" if others else None

    def _said(self) -> str:
        size = os.fstat(self.output).st_size
        return os.pread(self.output, STDERR_KEPT, max(0, size - STDERR_KEPT)).decode(errors="replace")

    def close(self) -> None:
        if self.sock.fileno() < 0:
            return
        self.sock.close()
        family = processes.tree([self.pid])
        self.server.ends(family[1:])
        processes.kill_group(self.pid)
        processes.kill(family[1:])
        self.server.forget(self.pid, ended=self.server.status(self.inner, END_LIMIT_S) is not None)
        self.server.end_adopted()
        os.close(self.output)
        shutil.rmtree(self.scratch, ignore_errors=True)


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("opforge-output", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    # appended to, so that cutting it to nothing really throws a flood away
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    return fd


def _malformed(asked: str, answer: dict[str, Any], nonce: int | None) -> str | None:
    """What is wrong with an answer, or None. Its values are used by this process, so that they are checked here: that there are those which
    the question asks for, of which type and size."""
    if nonce is not None and answer.get("nonce") != nonce:
        return "it answered a question that was not asked"
    status = answer.get("status")
    wanted = NEEDED.get((asked, str(status)), ("reason",) if status not in ("ok", "bound") else ())
    fine = status in ANSWERS and (status == "bound") <= (asked == "bind") and all(name in answer for name in wanted)
    fine = fine and all(type(answer[name]) is kind for name, kind in SHAPES.items() if name in answer)
    fine = fine and all(_number(answer[name]) for name in NUMBERS if name in answer)
    fine = fine and isinstance(answer.get("notes", []), list) and all(isinstance(item, str) for item in answer.get("notes", []))
    fine = fine and all(map(_number, _listed(answer.get("samples", [0]))))
    operations = answer.get("operations", {})
    fine = fine and isinstance(operations, dict) and all(map(_number, operations.values()))
    for name in ("reason", "trace"):
        if fine and len(answer.get(name, "")) > WORDS_KEPT:
            answer[name] = f"{answer[name][: WORDS_KEPT // 2]} … {answer[name][-WORDS_KEPT // 2 :]}"
    return None if fine else "its answer is not one that a worker gives"


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) and value else (None,)


def _number(value: Any) -> bool:
    """A count, or a number of seconds or bytes, that any arithmetic can take."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1 << 62


class _Server:
    """One forking server: a process with one environment, and a folder in which its workers have theirs."""

    def __init__(self, environment: Mapping[str, str], python: str = sys.executable) -> None:
        self.sock, theirs = socket.socketpair()
        self.exited: dict[int, int] = {}
        self.workers: set[int] = set()
        self.ending: set[int] = set()
        self.level = Level()
        self.pid = 0
        self.closed = False
        self.lock = threading.RLock()
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="opforge-"))
        except OSError as error:
            raise NotNow(f"No folder for workers can be made ({error.strerror}: {error.filename}). Free some space, or point TMPDIR elsewhere.") from error
        scrubbed = environment_for_workers(os.environ.items())
        if "PYTHONPATH" in scrubbed:
            # workers change into their own folder
            scrubbed["PYTHONPATH"] = os.pathsep.join(str(Path(entry).resolve()) for entry in scrubbed["PYTHONPATH"].split(os.pathsep))
        if python != sys.executable:
            # only the toolchains are the other environment's; opforge is this one
            scrubbed["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
        # packages installed for the user are found through HOME, which is another one in there
        scrubbed["PYTHONUSERBASE"] = site.getuserbase()
        for name in ("OPFORGE_ISOLATION", "OPFORGE_HEADERS"):
            if name in os.environ:
                scrubbed[name] = os.environ[name]
        # asked through NVML, torch does not initialise the driver to say whether a GPU is there: after a fork it could not be initialised again
        scrubbed["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        home = {"HOME": str(self.folder), "TMPDIR": str(self.folder), "OPFORGE_CACHE": str(cache_root()), "OPFORGE_SCRATCH": str(self.folder)}
        # -P keeps the working directory off the module path: a file called torch.py there must not be imported
        try:
            self.process = subprocess.Popen(
                [python, "-P", "-m", "opforge.runner.server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**scrubbed, **home, **environment},
                stdin=subprocess.DEVNULL,
                # Ctrl-C and a signal to the whole group are the parent's business: the server ends, and cleans up, when the socket closes
                start_new_session=True,
            )
        except OSError as error:
            self.sock.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise NotNow(f"No process can be started ({error.strerror}). {RELIEF}") from error
        finally:
            theirs.close()
        try:
            ready, _ = receive(self.sock, START_LIMIT_S)
        except Late as error:
            self.close()
            raise NotNow(f"The process that workers come from was not ready after {START_LIMIT_S:g} s. {RELIEF}") from error
        except Closed as error:
            self.close()
            # no verdict, rather than "not supported" with exit code 0: nothing was looked at
            raise NotNow(f"The worker process did not start ({error}). Run `{python} -m opforge.runner.server 0` to see why.") from error
        except BaseException:
            self.close()
            raise
        self.pid = int(ready["pid"])
        self.level = Level(**ready["level"])

    def spawn(self, sock: int, output: int, ours: socket.socket, limits: Limits, guards: Guards) -> tuple[int, str, int]:
        """Fork a worker: its process id as the server knows it, its folder, its process id as this process knows it.

        Raises NotNow where the machine refuses, Closed when the server has gone, Late when it is of no use any more: what it answers
        now could be taken for the answer to another question.
        """
        with self.lock:
            # a worker that is not kept from signalling may have stopped it
            processes.kill([self.pid], signal.SIGCONT)
            send(self.sock, {"do": "spawn", "limits": vars(limits), "lowered": guards.lowered()}, [sock, output])
            answer = self._until("spawned", None, START_LIMIT_S)
            if "reason" in answer:
                raise NotNow(f"No worker can be started ({answer['reason']}). {RELIEF}")
            here, _ = receive(ours, START_LIMIT_S)
            self.workers.add(int(here["pid"]))
            # its number may be that of one that has ended since
            self.ending.discard(int(here["pid"]))
            return int(answer["pid"]), str(answer["scratch"]), int(here["pid"])

    def status(self, pid: int, limit_s: float) -> int | None:
        """The exit code of a worker, waiting up to `limit_s` for it; None while it runs."""
        with self.lock:
            if pid not in self.exited:
                with contextlib.suppress(Late, Closed):
                    self._until("exited", pid, limit_s)
            return self.exited.get(pid)

    def forget(self, pid: int, *, ended: bool) -> None:
        """A worker was killed. Once it has ended its number may be another process's; a driver may take seconds to let it end, and
        meanwhile it is nothing that a worker has left behind: it runs no more."""
        with self.lock:
            if ended:
                self.workers.discard(pid)
            else:
                self.ending.add(pid)

    def ends(self, pids: Sequence[int]) -> None:
        """What a worker started is killed with it. Until it has ended it is the server's child, and nothing that another worker has left behind."""
        with self.lock:
            self.workers.update(pids)
            self.ending.update(pids)

    def adopted(self) -> list[int]:
        """Processes that a worker started and that left it: the server is their parent now."""
        with self.lock:
            gone = {pid for pid in self.ending if not processes.alive(pid)}
            self.ending -= gone
            self.workers -= gone
            return [pid for pid in processes.children(self.pid) if pid not in self.workers and processes.alive(pid)]

    def end_adopted(self) -> None:
        """End them. They may fork meanwhile: after two seconds of that, the server ends with everything below it."""
        deadline = time.monotonic() + 2.0
        while left := processes.tree(self.adopted()):
            processes.kill(left, signal.SIGSTOP)
            processes.kill(left)
            if time.monotonic() > deadline:
                self.close()
                return

    def _until(self, status: str, pid: int | None, limit_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + limit_s
        while True:
            message, _ = receive(self.sock, max(0.001, deadline - time.monotonic()))
            if message["status"] == "exited":
                self.exited[message["pid"]] = message["code"]
            if message["status"] == status and (pid is None or message["pid"] == pid):
                return message

    def close(self) -> None:
        self.closed = True
        with contextlib.suppress(OSError):
            # who waits for an answer in another thread is told
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
        try:
            self.process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            if self.pid:
                processes.kill(processes.tree([self.pid]))
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Isolated:
    """Kernels run in forked worker processes, one environment a server. The parent holds inputs, oracle, clock and verdict.

    limits   what a worker may use; by default half of the memory that is free
    guards   all of them, except in the red-team harness
    servers  those of another host, to share them
    python   the workers' interpreter: that of another virtual environment brings its versions of the toolchains
    """

    def __init__(
        self, *, limits: Limits | None = None, guards: Guards = ALL, python: str = sys.executable, servers: dict[tuple[tuple[str, str], ...], _Server] | None = None
    ) -> None:
        self.python = python
        self.limits = limits or default_limits()
        self.guards = guards
        self.servers = {} if servers is None else servers
        self._last: _Server | None = None
        self._closed = False
        self._starting: defaultdict[tuple[tuple[str, str], ...], threading.Lock] = defaultdict(threading.Lock)

    @property
    def isolation(self) -> str:
        """What is in force around the workers started so far, in words."""
        return "worker process" if self._last is None else str(self._last.level)

    def worker(self, environment: Mapping[str, str]) -> Worker:
        for _ in range(2):
            if self._closed:
                raise NotNow("The host was closed: no more workers are given out.")
            server = self._server(environment)
            try:
                return ForkedWorker(server, self.limits, self.guards)
            except Closed:
                # something ended the server meanwhile; a second one that ends at once is not a kernel's doing
                server.close()
            except Late as error:
                server.close()
                raise NotNow(f"No worker was ready after {START_LIMIT_S:g} s. {RELIEF}") from error
            except OSError as error:
                raise NotNow(f"No worker can be started ({error.strerror}). {RELIEF}") from error
        raise NotNow(f"The process that workers come from ends whenever a worker is wanted. {RELIEF}")

    def _server(self, environment: Mapping[str, str]) -> _Server:
        """The server for an environment, started where there is none that runs."""
        key = tuple(sorted(environment.items()))
        with self._starting[key]:
            server = self.servers.get(key)
            if server is not None and (server.closed or server.process.poll() is not None):
                server.close()
                server = None
            if server is None:
                server = self.servers[key] = _Server(environment, self.python)
            self._last = server
            return server

    def close(self) -> None:
        self._closed = True
        for server in list(self.servers.values()):
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
