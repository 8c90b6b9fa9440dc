"""Where kernels run: in worker processes of their own (the rule), or in this one (debugging, and so recorded)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Protocol

from opforge.core.language.errors import EnvironmentLacks, NotNow, OpforgeError
from opforge.runner.parent import bytecode
from opforge.runner.parent.client import ForkedWorker, LocalWorker, Worker
from opforge.runner.parent.forkserver_client import RELIEF, START_LIMIT_S, Drifted, NewbornDied, ServerProcess
from opforge.runner.walls.guards import ALL, Guards, Limits, default_limits
from opforge.runner.wire.channel import Closed, Late

STARTS = 3
"""Servers that are tried for one worker: a second one that ends at once is nobody's accident, a third says so."""


class Host(Protocol):
    """Gives out workers. `isolation` says what is in force around them, for the record."""

    guards: Guards

    @property
    def isolation(self) -> str:
        """What is in force, in words."""

    def worker(self, environment: Mapping[str, str]) -> Worker:
        """A fresh worker whose process started with these variables. Raises NotNow, or EnvironmentLacks for what must
        be there first.
        """

    def ready(self, environments: Iterable[Mapping[str, str]]) -> None:
        """Prepare for workers of these environments without waiting, where the host can; where it cannot, none of them
        is looked at.
        """

    def close(self) -> None:
        """End everything that was started."""


class InProcess:
    """Kernels run in this process: a crash ends everything. For debuggers; the record says so."""

    isolation = "in-process: nothing is isolated"

    def __init__(self, guards: Guards = ALL) -> None:
        self.guards = guards

    def worker(self, environment: Mapping[str, str]) -> Worker:
        missing = {name: value for name, value in environment.items() if os.environ.get(name) != value}
        if missing:
            settings = " ".join(f"{name}={value}" for name, value in missing.items())
            raise EnvironmentLacks(
                f"This backend needs {settings} in the environment from the start. Run without --in-process, or "
                f"set it: {settings} opforge …"
            )
        return LocalWorker(self.guards)

    def ready(self, environments: Iterable[Mapping[str, str]]) -> None:
        """Nothing is started: this process is the worker."""

    def close(self) -> None:
        return None


class Isolated:
    """Kernels run in forked worker processes, one environment a server. The parent holds inputs, oracle, clock and
    verdict.

    limits   what a worker may use; by default half of the memory that is free
    guards   all of them, except in the red-team harness
    servers  those of another host, to share them
    python   the workers' interpreter: that of another virtual environment brings its versions of the toolchains
    """

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        guards: Guards = ALL,
        python: str = sys.executable,
        servers: dict[tuple[tuple[str, str], ...], ServerProcess] | None = None,
    ) -> None:
        self.python = python
        self.limits = limits or default_limits()
        self.guards = guards
        self.servers = {} if servers is None else servers
        self.notes: list[str] = []
        self._closed = False
        self._ahead: list[threading.Thread] = []
        self._compilers: subprocess.Popen[bytes] | None = None
        self._starting: defaultdict[tuple[tuple[str, str], ...], threading.Lock] = defaultdict(threading.Lock)

    @property
    def isolation(self) -> str:
        """What is in force around the worker that was asked last, in words. A server that only starts meanwhile, ahead
        of its first worker, says nothing: its own walls are weaker, and a record of another's kernel named them.
        """
        asked = max(list(self.servers.values()), key=lambda server: server.asked_at, default=None)
        return "worker process" if asked is None or not asked.asked_at else str(asked.level)

    def worker(self, environment: Mapping[str, str]) -> Worker:
        for _ in range(STARTS):
            if self._closed:
                raise NotNow("The host was closed: no more workers are given out.")
            server = self._server(environment)
            try:
                return ForkedWorker(server, self.limits, self.guards)
            except Drifted as drift:
                self.notes.append(
                    f"the process that workers come from was started again, because something had changed it: {drift}"
                )
                server.close()
            except NewbornDied:
                # something ended the worker before it had said a word: the next one is another process
                continue
            except Closed:
                # something ended the server meanwhile; a second one that ends at once is not a kernel's doing
                server.close()
            except Late as error:
                server.close()
                raise NotNow(f"No worker was ready after {START_LIMIT_S:g} s. {RELIEF}") from error
            except OSError as error:
                raise NotNow(f"No worker can be started ({error.strerror}). {RELIEF}") from error
        raise NotNow(f"The process that workers come from ends whenever a worker is wanted. {RELIEF}")

    def _server(self, environment: Mapping[str, str]) -> ServerProcess:
        """The server for an environment, started where there is none that runs."""
        key = tuple(sorted(environment.items()))
        with self._starting[key]:
            server = self.servers.get(key)
            if server is not None and (server.closed or server.process.poll() is not None):
                server.close()
                server = None
            if server is None:
                server = self.servers[key] = ServerProcess(environment, self.python)
            return server

    def ready(self, environments: Iterable[Mapping[str, str]]) -> None:
        """Start the servers for these environments side by side, and do not wait: whoever wants a worker does. A server
        that does not start says why then.
        """

        def start(environment: Mapping[str, str]) -> None:
            with contextlib.suppress(OpforgeError):
                if not self._closed:
                    self._server(environment)

        keys = {tuple(sorted(environment.items())) for environment in environments}
        if self._compilers is None and any("inductor" in value for key in keys for _, value in key):
            self._compilers = bytecode.compile_ahead(bytecode.bytecode_kept())
        for key in keys:
            self._ahead.append(threading.Thread(target=start, args=(dict(key),), name="server", daemon=True))
            self._ahead[-1].start()

    def close(self) -> None:
        self._closed = True
        if self._compilers is not None:
            bytecode.give_up(self._compilers)
        for thread in self._ahead:
            thread.join()
        # each takes a second to end: a process with a toolchain in it has much to put away. They do so side by side,
        # and without a thread, which an interpreter that ends does not start any more
        for server in self.servers.values():
            server.end()
        for server in self.servers.values():
            server.close()
        self.servers.clear()

    def __enter__(self) -> Isolated:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
