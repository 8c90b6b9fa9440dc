"""The parent's end of a forking server: a process with one environment, from which workers come
(runner/worker/forkserver.py is the other end).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import site
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from opforge.backends.cache import cache_root
from opforge.core.language import spans
from opforge.core.language.errors import NotNow
from opforge.runner.parent.bytecode import bytecode_kept
from opforge.runner.walls import processes
from opforge.runner.walls.confinement import HIDDEN
from opforge.runner.walls.guards import Guards, Limits
from opforge.runner.walls.process_limits import ProcessLimits, changed, limits_of
from opforge.runner.walls.sandbox import Level, environment_for_workers
from opforge.runner.wire.channel import Closed, Late, receive, send
from opforge.runner.wire.messages import Exited, ServerReady, Spawned, WorkerReady
from opforge.runner.wire.protocol import Malformed, spawning, told
from opforge.store.files import private_places

START_LIMIT_S = 300.0
"""A server imports a toolchain: 11 s on 2 cores that ten processes share (measured 2026-11-23), tens of seconds where
thousands of files are compiled first, and a busy disk may take several times as long.
"""
BIRTH_LIMIT_S = 60.0
"""A fork says that it is there after 96 ms, 0.33 s at most of 12 (2 cores that ten processes shared, 2026-11-23); on a
machine that swaps it may take a hundred times as long.
"""
END_LIMIT_S = 5.0
"""A worker ends within 85 ms (13 of them on 2 cores that ten processes shared, 2026-11-23). A process with a device's
context takes about a second: it has much to put away.
"""
RELIEF = "Run the command again when less runs beside it; see what a process may use with: ulimit -a"


class Drifted(Exception):
    """Something has changed what a server may use: processors, priority, limits."""


class NewbornDied(Exception):
    """A worker ended before it had said that it is there."""


@dataclass(frozen=True, kw_only=True)
class Newborn:
    """A worker that has said that it is there.

    inner     its process id as the server knows it; `pid` as this process knows it
    scratch   its folder
    first     the first process of its namespace; 0 where it has none of its own
    """

    inner: int
    pid: int
    scratch: str
    first: int


Told = TypeVar("Told", Spawned, Exited)


class ServerProcess:
    """One forking server: a process with one environment, and a folder in which its workers have theirs."""

    @spans.spanned(
        lambda self, environment, python=sys.executable: (
            "start server",
            environment.get("OPFORGE_PRELOAD", "torch"),
            "",
        )
    )
    def __init__(self, environment: Mapping[str, str], python: str = sys.executable) -> None:
        self.sock, theirs = socket.socketpair()
        self.exited: dict[int, int] = {}
        self.workers: set[int] = set()
        self.ending: set[int] = set()
        self.level = Level()
        self.asked_at = 0.0
        self.pid = 0
        self.closed = False
        self.helpers: set[int] = set()
        self.process_limits: ProcessLimits | None = None
        self.lock = threading.RLock()
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="opforge-"))
        except OSError as error:
            raise NotNow(
                f"No folder for workers can be made ({error.strerror}: {error.filename}). Free some space, or point "
                "TMPDIR elsewhere."
            ) from error
        scrubbed = environment_for_workers(os.environ.items())
        if "PYTHONPATH" in scrubbed:
            # workers change into their own folder
            scrubbed["PYTHONPATH"] = os.pathsep.join(
                str(Path(entry).resolve()) for entry in scrubbed["PYTHONPATH"].split(os.pathsep)
            )
        if python != sys.executable:
            # only the toolchains are the other environment's; opforge is this one
            scrubbed["PYTHONPATH"] = str(Path(__file__).resolve().parents[3])
        # packages installed for the user are found through HOME, which is another one in there
        scrubbed["PYTHONUSERBASE"] = site.getuserbase()
        scrubbed[HIDDEN] = os.pathsep.join(map(str, private_places()))
        for name in ("OPFORGE_ISOLATION", "OPFORGE_HEADERS"):
            if name in os.environ:
                scrubbed[name] = os.environ[name]
        # asked through NVML, torch does not initialise the driver to say whether a GPU is there: after a fork it could
        # not be initialised again
        scrubbed["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        scrubbed |= bytecode_kept()
        home = {
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "OPFORGE_CACHE": str(cache_root()),
            "OPFORGE_SCRATCH": str(self.folder),
        }
        # -P keeps the working directory off the module path: a file called torch.py there must not be imported
        try:
            self.process = subprocess.Popen(
                [python, "-P", "-m", "opforge.runner.worker.forkserver", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**scrubbed, **home, **environment},
                stdin=subprocess.DEVNULL,
                # Ctrl-C and a signal to the whole group are the parent's business: the server ends, and cleans up, when
                # the socket closes
                start_new_session=True,
            )
        except OSError as error:
            self.sock.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise NotNow(f"No process can be started ({error.strerror}). {RELIEF}") from error
        finally:
            theirs.close()
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            ready = self._ready(python)
            self.level = Level(**ready.level)
            # it lives: nothing is taken back
            undo.pop_all()
        self.pid = ready.pid
        self.helpers = set(ready.helpers)
        self.process_limits = limits_of(self.pid)

    def _ready(self, python: str) -> ServerReady:
        """Its first message. Raises NotNow where none comes, or another: no verdict, rather than "not supported" with
        exit code 0, because nothing was looked at.
        """
        try:
            message, _ = receive(self.sock, START_LIMIT_S)
            ready = told(message)
            if not isinstance(ready, ServerReady):
                raise Malformed("its first word is not that it is ready")
        except Late as error:
            raise NotNow(
                f"The process that workers come from was not ready after {START_LIMIT_S:g} s. {RELIEF}"
            ) from error
        except (Closed, Malformed) as error:
            raise NotNow(
                f"The worker process did not start ({error}). "
                f"Run `{python} -m opforge.runner.worker.forkserver 0` to see why."
            ) from error
        return ready

    def spawn(
        self, theirs: socket.socket, output: tuple[int, int], ours: socket.socket, limits: Limits, guards: Guards
    ) -> Newborn:
        """Fork a worker.

        theirs   the worker's end of its socket, which is closed here as soon as the server has it: a worker that dies
                 newborn closes the last one
        output   the files that its standard output and its standard error will be

        Raises Drifted where something has changed what this server, and so whatever it forks, may use; NewbornDied
        where the worker ended at once; NotNow where the machine refuses; Closed when the server has gone; Late when it
        is of no use any more: what it answers now could be taken for the answer to another question.
        """
        with self.lock:
            # a worker that is not kept from signalling may have stopped it
            processes.kill([self.pid], signal.SIGCONT)
            drift = changed(self.process_limits, limits_of(self.pid)) if guards.process_limits else ""
            if drift:
                raise Drifted(drift)
            send(self.sock, spawning(limits, guards), [theirs.fileno(), *output])
            spawned = self._until(Spawned, None, START_LIMIT_S)
            theirs.close()
            if spawned.reason:
                raise NotNow(f"No worker can be started ({spawned.reason}). {RELIEF}")
            try:
                message, _ = receive(ours, BIRTH_LIMIT_S)
                here = told(message)
                if not isinstance(here, WorkerReady):
                    raise Malformed("its first word is not that it is here")
            except (Closed, Malformed) as error:
                raise NewbornDied(self.status(spawned.pid, END_LIMIT_S)) from error
            self.workers.add(here.pid)
            # its number may be that of one that has ended since
            self.ending.discard(here.pid)
            return Newborn(inner=spawned.pid, scratch=spawned.scratch, pid=here.pid, first=spawned.first)

    def status(self, pid: int, limit_s: float) -> int | None:
        """The exit code of a worker, waiting up to `limit_s` for it; None while it runs."""
        with self.lock:
            if pid not in self.exited:
                with contextlib.suppress(Late, Closed):
                    self._until(Exited, pid, limit_s)
            return self.exited.get(pid)

    def forget(self, pid: int, *, ended: bool) -> None:
        """A worker was killed. Once it has ended its number may be another process's; a driver may take seconds to let
        it end, and
        meanwhile it is nothing that a worker has left behind: it runs no more."""
        with self.lock:
            if ended:
                self.workers.discard(pid)
            else:
                self.ending.add(pid)

    def ends(self, pids: Sequence[int]) -> None:
        """What a worker started is killed with it. Until it has ended it is the server's child, and nothing that
        another worker has left behind.
        """
        with self.lock:
            self.workers.update(pids)
            self.ending.update(pids)

    def adopted(self) -> list[int]:
        """Processes that a worker started and that left it: the server is their parent now."""
        with self.lock:
            gone = {pid for pid in self.ending if not processes.alive(pid)}
            self.ending -= gone
            self.workers -= gone
            return [
                pid
                for pid in processes.children(self.pid)
                if pid not in self.workers and pid not in self.helpers and processes.alive(pid)
            ]

    def end_adopted(self) -> None:
        """End them. They may fork meanwhile: after two seconds of that, the server ends with everything below it."""
        deadline = time.monotonic() + 2.0
        while left := processes.tree(self.adopted()):
            processes.kill(left, signal.SIGSTOP)
            processes.kill(left)
            if time.monotonic() > deadline:
                self.close()
                return

    def _until(self, wanted: type[Told], pid: int | None, limit_s: float) -> Told:
        """The next message of this kind (about this worker). Who has exited meanwhile is noted. Raises Late, or Closed:
        a server that talks nonsense is
        of no more use than one that is gone."""
        deadline = time.monotonic() + limit_s
        while True:
            received, _ = receive(self.sock, max(0.001, deadline - time.monotonic()))
            try:
                message = told(received)
            except Malformed as error:
                raise Closed(str(error)) from error
            if isinstance(message, Exited):
                self.exited[message.pid] = message.code
            if isinstance(message, wanted) and (pid is None or message.pid == pid):
                return message

    def gone(self) -> bool:
        """Whether it has ended, or is about to: a signal takes a moment."""
        if not self.closed and not processes.alive(self.process.pid):
            self.end()
        return self.closed

    def end(self) -> None:
        """Tell it to end, which takes it a second; `close` waits for that."""
        self.closed = True
        with contextlib.suppress(OSError):
            # who waits for an answer in another thread is told
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def close(self) -> None:
        self.end()
        try:
            self.process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            if self.pid:
                processes.kill(processes.tree([self.pid]))
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
