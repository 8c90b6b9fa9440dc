"""Who may have ended a worker: a signal that no fault of a kernel raises comes from somebody, and Linux counts how many
processes it ended for want of memory.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping
from pathlib import Path

FAULTS = frozenset(
    getattr(signal, name)
    for name in ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGSYS", "SIGTRAP", "SIGXFSZ", "SIGXCPU")
)
"""Signals that a process gets for what it does itself. Any other has a sender."""
CGROUP = Path("/sys/fs/cgroup")
PROC = Path("/proc")


def sent(status: int) -> bool:
    """Whether a process that ended with this exit code (negative: a signal) was sent that signal."""
    return status < 0 and -status not in FAULTS


def ended_for_memory() -> Mapping[str, int]:
    """How many processes Linux has ended for want of memory, by who counts: the machine, and this process's cgroup."""
    counts: dict[str, int] = {}
    for who, path in (("the machine", PROC / "vmstat"), *(("its cgroup", path) for path in _events())):
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                name, _, number = line.partition(" ")
                if name == "oom_kill":
                    counts[who] = max(counts.get(who, 0), int(number))
    return counts


def _events() -> list[Path]:
    """The files in which a cgroup counts them: of both versions, its own and that of its container."""
    places = [CGROUP / "memory.events", CGROUP / "memory" / "memory.oom_control"]
    with contextlib.suppress(OSError, ValueError):
        for line in (PROC / "self" / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                places.append(CGROUP / path.lstrip("/") / "memory.events")
            elif "memory" in controllers.split(","):
                places.append(CGROUP / "memory" / path.lstrip("/") / "memory.oom_control")
    return places


def who(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """The possible senders of a signal, from the counts of `ended_for_memory` before and after."""
    grown = [
        f"{name} counts {after[name] - before.get(name, 0)} more" for name in after if after[name] > before.get(name, 0)
    ]
    if grown:
        return (
            f"most likely Linux, for want of memory ({', '.join(grown)} of its out-of-memory kills): give it more, or "
            "run less beside it"
        )
    if after:
        return "sent by somebody on this machine, or by the kernel to itself; no out-of-memory kill was counted"
    return "sent by Linux for want of memory, by somebody on this machine, or by the kernel to itself"
