"""What Linux says of other processes: children, memory, processor time, threads. Empty answers where there is
no /proc.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TGKILL = {"x86_64": 234, "aarch64": 131}
"""The number of the system call tgkill."""

STOP_LIMIT_S, STOP_LOOK_S = 0.25, 20e-6
"""A thread stops when it is next scheduled, ticks of 4 ms later on a busy machine; a look every 20 us, a wake-up's
time, adds nothing to a turn of 40 ms.
"""
MOST_SPREAD = 16
"""Threads that are held apart at most: beyond, so many that two on one processor are the rule and no accident."""
WORKED = 0.1
"""The share of the busiest thread's time from which another counts as working: helpers wake up now and then."""


def _read(path: str) -> bytes:
    """All of a file of /proc: asked some ten times at each request, and a fifth of what pathlib takes. Raises
    OSError.
    """
    descriptor, parts = os.open(path, os.O_RDONLY | os.O_CLOEXEC), []
    try:
        while part := os.read(descriptor, 1 << 16):
            parts.append(part)
    finally:
        os.close(descriptor)
    return b"".join(parts)


def _tasks(pid: int) -> list[str]:
    """The folders of a process's threads; [] when it is gone."""
    folder = f"{PROC}/{pid}/task"
    with contextlib.suppress(OSError):
        return [f"{folder}/{thread}" for thread in os.listdir(folder)]  # noqa: PTH208 - it costs a third of pathlib
    return []


def _fields(path: str) -> list[str]:
    """The fields of a stat file after the name, which may hold anything. Raises OSError."""
    return _read(path).decode(errors="replace").rpartition(")")[2].split()


def children(pid: int) -> list[int]:
    """The processes started by `pid`, by every one of its threads."""
    pids: list[int] = []
    for task in _tasks(pid):
        with contextlib.suppress(OSError, ValueError):
            pids += map(int, _read(f"{task}/children").split())
    return pids


def tree(pids: Iterable[int]) -> list[int]:
    """These processes and all they started, parents first."""
    descendants: list[int] = []
    pending = list(pids)
    while pending:
        pid = pending.pop()
        if pid not in descendants:
            descendants.append(pid)
            pending += children(pid)
    return descendants


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may hold anything; [] when the process is gone."""
    with contextlib.suppress(OSError):
        return _fields(f"{PROC}/{pid}/stat")
    return []


def confinement_of(pid: int) -> dict[str, bool]:
    """What this process can see of the walls around another: whether its system calls are filtered, whether it has no
    capability left and whether
    its file system is read-only."""
    fields: dict[str, str] = {}
    with contextlib.suppress(OSError):
        fields = dict(
            line.split(":", 1) for line in (PROC / str(pid) / "status").read_text().splitlines() if ":" in line
        )
    roots: list[list[str]] = []
    with contextlib.suppress(OSError):
        roots = [
            line.split()[5].split(",")
            for line in (PROC / str(pid) / "mountinfo").read_text().splitlines()
            if line.split()[4] == "/"
        ]
    powers = [int(fields.get(name, "1"), 16) for name in ("CapPrm", "CapEff", "CapBnd")]
    return {
        "filtered": fields.get("Seccomp", "").strip() == "2",
        "powerless": not any(powers),
        "read_only": bool(roots) and "ro" in roots[-1],
    }


def alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    fields = _stat(pid)
    return bool(fields) and fields[0] not in "ZX"


def stopped(pid: int) -> bool:
    """Whether somebody has stopped it (SIGSTOP, a debugger)."""
    fields = _stat(pid)
    return bool(fields) and fields[0] in "Tt"


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
    for task in _tasks(pid):
        with contextlib.suppress(OSError, ValueError, IndexError):
            total += int(_read(f"{task}/schedstat").split()[0])
    return total / 1e9


def kept_waiting_s(pid: int) -> float:
    """Seconds in which a process's first thread was ready to run and others had the processors; 0 where the kernel
    keeps no count.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_read(f"{PROC}/{pid}/schedstat").split()[1]) / 1e9
    return 0.0


def threads(pid: int) -> int:
    """How many threads a process has; 0 when it is gone."""
    return len(_tasks(pid))


def stop(pid: int, limit_s: float = STOP_LIMIT_S) -> bool:
    """Stop a process with all its threads, and wait until they have stopped; whether they have within `limit_s`.

    A signal to the process is taken by its main thread, which sleeps and has to be given a processor first: a thread
    that spins (OpenMP's do, for some milliseconds after each loop) keeps it, and goes on in the next candidate's turn.
    So each thread gets one of its own: who runs is stopped at once.
    """
    kill_group(pid, signal.SIGSTOP)
    deadline = time.monotonic() + limit_s
    signalled: set[int] = set()
    while True:
        going = [thread for thread, state in _states(pid) if state in "RSD"]
        if not going:
            return True
        for thread in going:
            if thread not in signalled:
                signalled.add(thread)
                _signal_thread(pid, thread, signal.SIGSTOP)
        if time.monotonic() > deadline:
            return False
        time.sleep(STOP_LOOK_S)


def _states(pid: int) -> list[tuple[int, str]]:
    states = []
    for task in _tasks(pid):
        with contextlib.suppress(OSError, IndexError):
            states.append((int(task.rpartition("/")[2]), _fields(f"{task}/stat")[0]))
    return states


def _signal_thread(pid: int, thread: int, sign: int) -> None:
    number = TGKILL.get(platform.machine())
    if number is not None and sys.platform == "linux":
        ctypes.CDLL(None).syscall(ctypes.c_long(number), ctypes.c_int(pid), ctypes.c_int(thread), ctypes.c_int(sign))


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What the threads of a process have had of the processors since it began.

    own_s         seconds on a processor
    waited_s      seconds in which a thread could have run and another had the processor
    voluntary     times that a thread gave it up, to wait for something; involuntary: times that it was taken from one
    by_thread     seconds of each thread, and the processor that it ran on last
    """

    own_s: float
    waited_s: float
    voluntary: int
    involuntary: int
    by_thread: Mapping[int, tuple[float, int]]


def usage(pid: int) -> Usage:
    """The Usage of a process now; zeros where the system does not tell."""
    own = waited = voluntary = involuntary = 0
    by_thread: dict[int, tuple[float, int]] = {}
    with contextlib.suppress(OSError, ValueError):
        for task in _tasks(pid):
            with contextlib.suppress(OSError, ValueError, IndexError):
                ran, delay, _ = map(int, _read(f"{task}/schedstat").split())
                counts = [
                    int(line.rpartition(b":")[2])
                    for line in _read(f"{task}/status").splitlines()
                    if b"ctxt_switches" in line
                ]
                place = int(_fields(f"{task}/stat")[36])
                own, waited, voluntary, involuntary = (
                    own + ran,
                    waited + delay,
                    voluntary + counts[0],
                    involuntary + counts[1],
                )
                by_thread[int(task.rpartition("/")[2])] = (ran / 1e9, place)
    return Usage(
        own_s=own / 1e9, waited_s=waited / 1e9, voluntary=voluntary, involuntary=involuntary, by_thread=by_thread
    )


def spread(now: Usage, before: Usage | None = None) -> list[tuple[int, set[int]]]:
    """Hold the threads that worked most since `before`, each to a processor of its own, where two of them were on the
    same one last.

    Threads that go on where they were would share it for several of the scheduler's ticks, 4 ms each, and one of them
    spins while it waits for the other. What comes back is for `freed`, to be called as soon as they run.
    """
    if not hasattr(os, "sched_setaffinity") or not 2 <= len(now.by_thread) <= MOST_SPREAD:
        return []
    worked = {
        thread: ran - (before.by_thread.get(thread, (0.0, 0))[0] if before else 0.0)
        for thread, (ran, _) in now.by_thread.items()
    }
    most = max(worked.values())
    busy = sorted((thread for thread in worked if worked[thread] > WORKED * most), key=lambda thread: -worked[thread])
    held: list[tuple[int, set[int]]] = []
    with contextlib.suppress(OSError):
        allowed = os.sched_getaffinity(busy[0]) if busy else set()
        busy = busy[: len(allowed)]
        if len({now.by_thread[thread][1] for thread in busy}) < len(busy):
            for thread, place in zip(busy, sorted(allowed), strict=False):
                held.append((thread, os.sched_getaffinity(thread)))
                os.sched_setaffinity(thread, {place})
    return held


def freed(held: list[tuple[int, set[int]]]) -> None:
    """Let threads run wherever they could before `spread`."""
    for thread, allowed in held:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(thread, allowed)


def kill(pids: Iterable[int], sign: int = signal.SIGKILL) -> None:
    """Signal processes, some of which may be gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, sign)


def kill_group(pid: int, sign: int = signal.SIGKILL) -> None:
    """Signal a process group at once: no member can fork out of it meanwhile."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, sign)
