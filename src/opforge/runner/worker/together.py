"""Two callers at once: two launches of one implementation, each called over and over in a thread of its own.

A library may be called by several threads, and scratch memory that calls share is written by both then.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

LASTS_S = 0.004
"""Each thread calls for so long, so that the last call of one overlaps with the other's: some hundred small calls."""
SWITCH_S = 5e-6
"""Of Python's lock, which a thread keeps for 5 ms otherwise: between two short calls it is back before the other has
woken, and none would ever overlap.
"""


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
    switches_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        second.start()
        calls(one)
        second.join()
    finally:
        sys.setswitchinterval(switches_s)
    if raised:
        raise raised[0]
