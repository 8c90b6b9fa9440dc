"""What Linux says of other processes: children, memory, processor time, threads. Empty answers where there is no /proc."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")


def children(pid: int) -> list[int]:
    """The processes started by `pid`, by every one of its threads."""
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        for task in (PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def tree(pids: Iterable[int]) -> list[int]:
    """These processes and all they started, parents first."""
    found: list[int] = []
    pending = list(pids)
    while pending:
        pid = pending.pop()
        if pid not in found:
            found.append(pid)
            pending += children(pid)
    return found


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may hold anything; [] when the process is gone."""
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    fields = _stat(pid)
    return bool(fields) and fields[0] not in "ZX"


def memory_bytes(pid: int) -> int:
    """Resident memory that no file stands behind: private, and shared mappings without a name."""
    total = 0
    with contextlib.suppress(OSError, ValueError):
        for line in (PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith(("RssAnon:", "RssShmem:")):
                total += int(line.split()[1]) << 10
    return total


def processor_s(pid: int) -> float:
    """Seconds on a processor, over all threads, to the nanosecond where the kernel keeps count."""
    total = 0
    with contextlib.suppress(OSError, ValueError):
        for task in (PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def threads(pid: int) -> int:
    """How many threads a process has; 0 when it is gone."""
    with contextlib.suppress(OSError):
        return len(list((PROC / str(pid) / "task").iterdir()))
    return 0


def kill(pids: Iterable[int], sign: int = signal.SIGKILL) -> None:
    """Signal processes, some of which may be gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, sign)


def kill_group(pid: int, sign: int = signal.SIGKILL) -> None:
    """Signal a process group at once: no member can fork out of it meanwhile."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, sign)
