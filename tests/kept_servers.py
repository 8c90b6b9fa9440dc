"""Processes that workers come from, kept from one test to the next: each imports a toolchain, which takes seconds.

A host of the product ends its servers with it. Here a server goes back to be lent again to the next host that asks for
the same environment, as it would serve that environment's next worker in the product. One that has lost or kept a
worker, or was closed for a reason, is ended as always. Tests of the servers themselves are marked `own_servers`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from opforge.backends.cache import cache_root
from opforge.runner.parent.forkserver_client import ServerProcess
from opforge.runner.walls import processes
from opforge.runner.walls.confinement import HIDDEN
from opforge.runner.walls.process_limits import limits_of
from opforge.runner.walls.sandbox import environment_for_workers
from opforge.store.files import private_places

MOST_IDLE = 4
"""Servers that wait for the next test: each holds a toolchain, some 300 MB."""


class Lent:
    """A server for as long as one host has it; everything but its end is the server's own."""

    def __init__(self, kept: KeptServers, key: object, server: ServerProcess) -> None:
        self._kept, self._key, self._server = kept, key, server
        self._started = server.level
        self.level = server.level
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def end(self) -> None:
        """The host ends: a server without a worker waits for the next one."""
        if not self.closed:
            self.closed = True
            self._server.level = self._started
            self._kept.give_back(self._key, self._server)

    def close(self) -> None:
        """After `end`, nothing. Without it the host has a reason to want another server."""
        if not self.closed:
            self.closed = True
            self._server.close()


class KeptServers:
    """What is lent, and by what it was started with."""

    def __init__(self) -> None:
        self.idle: list[tuple[object, ServerProcess]] = []
        self.own = False

    def lend(self, environment: Mapping[str, str], python: str) -> Any:
        """A server for an environment: one that waits, or a new one. For tests of servers, always a new one."""
        if self.own:
            return ServerProcess(environment, python)
        key = (
            python, tuple(sorted(environment.items())),
            tuple(sorted(environment_for_workers(os.environ.items()).items())),
            *(os.environ.get(name) for name in ("OPFORGE_ISOLATION", "OPFORGE_HEADERS", "TMPDIR", HIDDEN)),
            str(cache_root()), tuple(map(str, private_places())), limits_of(os.getpid()),
        )  # fmt: skip
        for at, (known, server) in enumerate(self.idle):
            if known == key:
                del self.idle[at]
                if _well(server):
                    return Lent(self, key, server)
                server.close()
                break
        return Lent(self, key, ServerProcess(environment, python))

    def give_back(self, key: object, server: ServerProcess) -> None:
        if not _well(server):
            server.close()
            return
        self.idle.append((key, server))
        if len(self.idle) > MOST_IDLE:
            self.idle.pop(0)[1].close()

    def close(self) -> None:
        for _, server in self.idle:
            server.end()
        for _, server in self.idle:
            server.close()
        self.idle.clear()


def _well(server: ServerProcess) -> bool:
    """Whether it runs, as it was started, and nothing is left of its workers."""
    return (
        not server.closed
        and server.process.poll() is None
        and server.folder.is_dir()
        and not any(processes.alive(pid) for pid in server.workers)
        and not server.adopted()
        and limits_of(server.pid) == server.process_limits
    )


KEPT = KeptServers()
