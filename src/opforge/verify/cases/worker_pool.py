"""Workers that are kept: one process of an implementation serves its verification, its workloads and its audits.

A new process costs a toolchain's import and a device context, seconds on a GPU, each time. A kept one has run the
implementation's own cases before, as in every verification; whatever it kept of them, the audit's unseen contents ask
for.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from opforge.backends import backend
from opforge.core.definition.implementation import Config, Implementation
from opforge.core.language.printed import Printed
from opforge.runner import Host, Worker, WorkerDied, WorkerLate
from opforge.runner.wire.messages import Failure, Release


@dataclass(kw_only=True)
class WorkerPool:
    """The idle workers of one operator on a device, at most one an implementation. With `kept` False each is closed
    when it is left.

    printed   what workers printed while they were verified, by implementation, dtype and config; `compiled_s` what
              compilers took inside of their calls meanwhile, seconds, where they say it
    """

    host: Host
    device: str
    kept: bool = True
    idle: dict[str, Worker] = field(default_factory=dict)
    closed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    compiled_s: dict[tuple[str, str, Config | None], float] = field(default_factory=dict)
    printed: dict[tuple[str, str, Config | None], Printed] = field(default_factory=dict)

    def take(self, implementation: Implementation) -> Worker:
        """The implementation's idle worker, or a new one. Raises NotNow or EnvironmentLacks."""
        with self.lock:
            worker = self.idle.pop(implementation.name, None)
        if worker is None:
            return self.host.worker(backend(implementation.backend).environment(self.device))
        # what it printed for others, while it was timed say, is theirs
        worker.printed()
        worker.compiled_s()
        return worker

    def heard(self, implementation: Implementation, dtype: str, config: Config | None, worker: Worker) -> None:
        """A verification is over: keep what its worker printed, and what compilers took in it."""
        said, took_s = worker.printed(), worker.compiled_s()
        with self.lock:
            if said is not None:
                self.printed[implementation.name, dtype, config] = said
            # another library's first call counts as compiling from its beginning to its end
            if took_s > 0 and implementation.backend != "library":
                self.compiled_s[implementation.name, dtype, config] = took_s

    def leave(
        self, implementation: Implementation, worker: Worker, *, whole: bool, launches: tuple[int, ...] = ()
    ) -> None:
        """Give a worker back. It is kept where nothing went wrong in it (`whole`) and it forgets the launches that are
        left; else closed.
        """
        if whole and self.kept:
            try:
                whole = all(
                    not isinstance(worker.request(Release(launch=launch)), Failure)
                    for launch in sorted(launches, reverse=True)
                )
            except (WorkerDied, WorkerLate):
                whole = False
            if whole:
                with self.lock:
                    if not self.closed and implementation.name not in self.idle:
                        self.idle[implementation.name] = worker
                        return
        worker.close()

    def close(self) -> None:
        """End the idle ones, side by side: a process with a device's context has much to put away."""
        with self.lock:
            self.closed = True
            idle = list(self.idle.values())
            self.idle.clear()
        if idle:
            with ThreadPoolExecutor(max_workers=len(idle)) as threads:
                list(threads.map(lambda worker: worker.close(), idle))
