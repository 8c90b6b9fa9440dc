"""The workers of a search: one that answers is kept for the next point, and has a device's context before it is wanted.

A process with a context costs a second on a GPU, and most points take less than that to be measured.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from opforge.backends import backend
from opforge.core.definition.implementation import Implementation
from opforge.core.language.errors import OpforgeError
from opforge.runner import Worker, WorkerDied, WorkerLate
from opforge.runner.wire.messages import Failure, GetContext, Release
from opforge.verify import WorkerPool

MOST = 1
"""Idle workers of an implementation. While the best point lives in one, the next is tried in another; a third waits
where that one is kept in its place. Each takes 0.6 GB of a GPU (an H200, CUDA 13).
"""


@dataclass(kw_only=True)
class SearchWorkers(WorkerPool):
    """A WorkerPool that keeps several workers of an implementation, with a workload's memory mapped for the next point.

    spare    the idle ones, by implementation
    coming   those that are being started
    """

    spare: dict[str, list[Worker]] = field(default_factory=dict)
    coming: dict[str, list[Future[Worker | None]]] = field(default_factory=dict)

    def start(self, implementations: Iterable[Implementation]) -> None:
        """Start workers in threads, one for each that is named, and do not wait: whoever takes one does."""
        for implementation in implementations if self.kept else ():
            future: Future[Worker | None] = Future()
            with self.lock:
                if self.closed:
                    return
                self.coming.setdefault(implementation.name, []).append(future)
            threading.Thread(target=self._start, args=(implementation, future), daemon=True).start()

    def _start(self, implementation: Implementation, future: Future[Worker | None]) -> None:
        ready: Worker | None = None
        try:
            # whoever needs a worker is told what is wrong
            with contextlib.suppress(OpforgeError, OSError, WorkerDied, WorkerLate):
                worker = self.host.worker(backend(implementation.backend).environment(self.device))
                try:
                    ready = None if isinstance(worker.request(GetContext(device=self.device)), Failure) else worker
                finally:
                    if ready is None:
                        worker.close()
        finally:
            future.set_result(ready)

    def take(self, implementation: Implementation) -> Worker:
        """An idle worker of the implementation, one that is being started, or a new one."""
        with self.lock:
            spare, coming = self.spare.get(implementation.name), self.coming.get(implementation.name)
            worker = spare.pop() if spare else None
            future = coming.pop(0) if worker is None and coming else None
        if implementation.space and not spare and not coming:
            # a better point keeps its worker: the next one's is under way by then
            self.start([implementation])
        if future is not None:
            worker = future.result()
        if worker is None:
            return super().take(implementation)
        # what it printed for others is theirs
        worker.printed()
        worker.compiled_s()
        return worker

    def leave(
        self, implementation: Implementation, worker: Worker, *, whole: bool, launches: tuple[int, ...] = ()
    ) -> None:
        """Give a worker back. It is kept where nothing went wrong in it (`whole`), and has forgotten the launches that
        are left; else closed.
        """
        with contextlib.suppress(WorkerDied, WorkerLate):
            if whole and self.kept:
                # the last is the one that maps the arena
                answers = [
                    worker.request(Release(launch=launch, mapped=True)) for launch in sorted(launches, reverse=True)
                ]
                if not any(isinstance(answer, Failure) for answer in answers):
                    with self.lock:
                        spare = self.spare.setdefault(implementation.name, [])
                        if not self.closed and len(spare) < MOST:
                            spare.append(worker)
                            return
        worker.close()

    def shed(self, name: str = "") -> None:
        """End the idle ones, of one implementation alone where it is named: others want their memory."""
        with self.lock:
            names = [name] if name else [*self.spare]
            idle = [worker for each in names for worker in self.spare.pop(each, ())]
            coming = self.coming.pop(name, []) if name else []
        _end(idle)
        if coming:
            threading.Thread(target=_end_coming, args=(coming,), daemon=True).start()

    def close(self) -> None:
        """End the idle ones and those that are being started, side by side."""
        with self.lock:
            self.closed = True
            coming = [future for futures in self.coming.values() for future in futures]
            self.coming.clear()
        self.shed()
        _end_coming(coming)


def _end_coming(coming: list[Future[Worker | None]]) -> None:
    _end([worker for future in coming if (worker := future.result()) is not None])


def _end(workers: list[Worker]) -> None:
    if workers:
        with ThreadPoolExecutor(max_workers=len(workers)) as threads:
            list(threads.map(lambda worker: worker.close(), workers))
