"""How far a worker is shut in: what is asked for, its limits and variables, and `Level`, which says which walls really
are in force; nothing here is assumed."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from opforge.core.language.errors import EnvironmentLacks
from opforge.runner.walls.guards import Limits
from opforge.walls.environment import for_kernels

ISOLATION = "OPFORGE_ISOLATION"

KEPT_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 62)}
"""glibc keeps the memory that is freed, so that a call which makes its result finds pages that are there. Without this
a process is in one of two states for its whole life, by chance: of 15 equal processes that loop over a bias_add of 12
MiB, 3 to 4 of 5 gave it back and took it again in each call (4.9 to 6.0 ms, the faults of 3072 pages), the others kept
it (0.7 to 1.0 ms). With it 18 of 18 took 0.7 to 0.9 ms (2 cores, EPYC, 2026-11-23).
"""


@dataclass(frozen=True, kw_only=True)
class Level:
    """What is in force around a worker. `landlock` is the version of its interface, 0 without it.

    own_processes   a process namespace for each worker, besides the one that all of them may be in
    read_only       a file system that is read-only outside a worker's own folders
    filtered        system calls that no toolchain needs are refused
    powerless       no capabilities, whoever the user is
    """

    pid_namespace: bool = False
    network_namespace: bool = False
    landlock: int = 0
    own_processes: bool = False
    read_only: bool = False
    filtered: bool = False
    powerless: bool = False

    def __str__(self) -> str:
        parts = ["worker process", "guarded shared memory", "limits on memory and processes"]
        if self.own_processes:
            parts.append("process namespace of its own")
        elif self.pid_namespace:
            parts.append("process namespace")
        if self.network_namespace:
            parts.append("no network")
        elif self.landlock >= 4:
            parts.append("no TCP")
        if self.filtered:
            parts.append("system calls filtered")
        if self.powerless:
            parts.append("no privileges")
        if self.read_only:
            parts.append("read-only file system")
        if self.landlock or not self.read_only:
            parts.append(f"writes confined (Landlock {self.landlock})" if self.landlock else "writes not confined")
        return ", ".join(parts)


def accelerators() -> bool:
    """Whether this machine has device nodes of an accelerator."""
    return any(True for pattern in ("nvidia[0-9]*", "kfd", "davinci[0-9]*") for _ in Path("/dev").glob(pattern))


def wanted() -> str:
    """How much isolation to ask for: $OPFORGE_ISOLATION ("full" or "basic"), by default "full" where there is no
    accelerator.

    Drivers of accelerators inside user namespaces and under Landlock are not what their vendors test, and a kernel that
    fails for that reason would be blamed: there it is asked for by name.
    """
    given = os.environ.get(ISOLATION, "")
    return given if given in ("full", "basic") else "basic" if accelerators() else "full"


def environment_for_workers(environ: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The variables a worker starts with."""
    return for_kernels(environ) | KEPT_MEMORY


def limit(limits: Limits, *, host_memory: bool) -> None:
    """Resource limits for this process and what it starts. `host_memory` False leaves address space alone: a GPU driver
    reserves more of it than there is memory."""

    def lower(kind: int, value: int) -> None:
        _, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (value, value))

    lower(resource.RLIMIT_CORE, 0)
    lower(resource.RLIMIT_FSIZE, limits.file_bytes)
    lower(resource.RLIMIT_NOFILE, limits.descriptors)
    if host_memory and sys.platform == "linux":
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages = int(Path("/proc/self/statm").read_text().split()[5])
            lower(resource.RLIMIT_DATA, pages * resource.getpagesize() + limits.memory_bytes)


def require(device: str) -> None:
    """Raises EnvironmentLacks where this process cannot reach a CUDA device that the parent can: no kernel is to be
    blamed for that.
    """
    if device != "cuda":
        return
    import torch

    if torch.cuda.is_available():
        return
    if wanted() == "full":
        raise EnvironmentLacks(
            f"the driver reaches no CUDA device inside the namespaces of {ISOLATION}=full on this machine; "
            f"use {ISOLATION}=basic"
        )
    raise EnvironmentLacks("torch sees no CUDA device in the worker; see what is here with: opforge doctor")
