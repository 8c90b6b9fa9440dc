"""What a process may use, and how soon it is served: processors, priority, limits. A kernel that changes them for
others makes a rival slow, or
takes its verdict; what is asked here is whether they are still what they were."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

IOPRIO_GET = {"x86_64": 252, "aarch64": 31}
LIMITS = (
    "RLIMIT_CPU",
    "RLIMIT_AS",
    "RLIMIT_STACK",
    "RLIMIT_NPROC",
    "RLIMIT_MEMLOCK",
    "RLIMIT_RTPRIO",
    "RLIMIT_NICE",
    "RLIMIT_SIGPENDING",
    "RLIMIT_MSGQUEUE",
)
"""Those that a worker does not lower for itself when it is shut in."""


@dataclass(frozen=True, kw_only=True)
class ProcessLimits:
    """As the operating system gives it; `limits` are (name, soft, hard)."""

    processors: frozenset[int]
    nice: int
    policy: int
    io_priority: int
    out_of_memory: int
    limits: tuple[tuple[str, int, int], ...]


def limits_of(pid: int) -> ProcessLimits | None:
    """The limits of a process of this user; None where it is gone, or the system does not say."""
    if sys.platform != "linux":
        return None
    import resource

    with contextlib.suppress(OSError, ValueError):
        limits = tuple(
            (name, *resource.prlimit(pid, getattr(resource, name))) for name in LIMITS if hasattr(resource, name)
        )
        return ProcessLimits(
            processors=frozenset(os.sched_getaffinity(pid)),
            nice=os.getpriority(os.PRIO_PROCESS, pid),
            policy=os.sched_getscheduler(pid),
            io_priority=_io_priority(pid),
            out_of_memory=int(Path(f"/proc/{pid}/oom_score_adj").read_text()),
            limits=limits,
        )
    return None


def _io_priority(pid: int) -> int:
    number = IOPRIO_GET.get(platform.machine())
    # 1: the second argument is a process
    return int(ctypes.CDLL(None).syscall(number, ctypes.c_int(1), ctypes.c_int(pid))) if number else 0


def changed(before: ProcessLimits | None, now: ProcessLimits | None) -> str:
    """What is not as it was, in words; "" when nothing is, or one of them is not known."""
    if before is None or now is None or before == now:
        return ""
    parts = []
    for item in dataclasses.fields(ProcessLimits):
        was, became = getattr(before, item.name), getattr(now, item.name)
        if was != became:
            pair = (len(was), len(became)) if item.name == "processors" else (was, became)
            parts.append(
                "limits " + ", ".join(name for name, *_ in set(was) ^ set(became))
                if item.name == "limits"
                else f"{item.name.replace('_', ' ')} {pair[0]} became {pair[1]}"
            )
    return "; ".join(parts)


def privileged(before: ProcessLimits | None, now: ProcessLimits | None) -> str:
    """What a process has gained over others since, in words; "" when it has gained nothing. What it does to itself
    alone is its own business.
    """
    if before is None or now is None:
        return ""
    gains = [
        (now.nice < before.nice, f"priority (nice {before.nice} became {now.nice})"),
        (now.policy != before.policy and now.policy in (os.SCHED_FIFO, os.SCHED_RR), "real-time scheduling"),
        (not now.processors <= before.processors, "processors"),
    ]
    return ", ".join(gain for gained, gain in gains if gained)
