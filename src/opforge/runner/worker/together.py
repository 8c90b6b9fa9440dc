"""Two callers at once: two launches of one implementation, each called over and over in a thread of its own.

A library may be called by several threads, and scratch memory that calls share is written by both then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LASTS_S = 0.004
"""Each thread calls for so long, so that the last call of one overlaps with the other's: some hundred small calls."""


def together(one: Callable[[], object], other: Callable[[], object], lasts_s: float = LASTS_S) -> None:
    """Both, at the same time. Raises what either raised."""
    begin, raised = threading.Barrier(2), []

    def calls(run: Callable[[], object]) -> None:
        try:
            begin.wait()
            ends = time.perf_counter() + lasts_s
            run()
            while time.perf_counter() < ends:
                run()
        except Exception as error:  # noqa: BLE001 - a kernel's own: it is raised where the request is answered
            raised.append(error)

    second = threading.Thread(target=calls, args=(other,), daemon=True)
    second.start()
    calls(one)
    second.join()
    if raised:
        raise raised[0]
