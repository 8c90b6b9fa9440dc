"""Compilers at work ahead of the measuring: threads that take what is most urgent first."""

from __future__ import annotations

import heapq
import itertools
import os
import threading
from collections.abc import Callable

from opforge.runner.walls import processes
from opforge.walls import tool

NOW, LATER = 0, 1
"""How urgent a job is: somebody waits for it, or is about to; or it is one of those that will be needed, in their
order.
"""


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2


def default_jobs(device: str) -> int:
    """Compilers at once. On a CPU the kernels want the processors too; beside a GPU two are enough for whoever
    measures.
    """
    return max(1, processors() // 2 if device == "cpu" else processors() - 2)


def beside_kernels(device: str) -> bool:
    """Whether compilers may work while kernels are timed: on a CPU they would take the cores that the kernels
    run on.
    """
    return device != "cpu"


class Compilers:
    """`jobs` threads, which each wait for one compiler at a time. What is handed in first is begun first, among the
    equally urgent. `children`: processes that compile for them, besides those of backends.native.
    """

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._threads: list[threading.Thread] = []
        self.children: set[int] = set()

    def submit(self, work: Callable[[], None], urgency: int) -> None:
        """`work` must not raise."""
        with self._changed:
            heapq.heappush(self._waiting, (urgency, next(self._number), work))
            if len(self._threads) < self.jobs:
                self._threads.append(threading.Thread(target=self._serve, daemon=True))
                self._threads[-1].start()
            self._changed.notify()

    def close(self) -> None:
        """Give up what has not begun, and end what has: nobody wants it any more, and others want the processors."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
        processes.kill(processes.tree((*tool.running(), *self.children)))
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                _, _, work = heapq.heappop(self._waiting)
            work()
