"""Shuts a worker in: Linux namespaces, Landlock, resource limits. Each is used where the kernel allows it, and `Level`
says which of them really are in force; nothing here is assumed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from opforge.core.language.errors import EnvironmentLacks
from opforge.runner.walls.guards import Limits

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_CHILD_SUBREAPER = 1, 4, 24, 38, 36
CAPABILITIES, CAPABILITY_VERSION = 64, 0x20080522
CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x08000000, 0x10000000, 0x20000000, 0x40000000

# the same numbers on x86-64 and arm64; see linux/landlock.h
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_RULE_PATH_BENEATH = 1
WRITE_FILE, REMOVE_DIR, REMOVE_FILE = 1 << 1, 1 << 4, 1 << 5
MAKE = sum(1 << bit for bit in range(6, 13))
REFER, TRUNCATE = 1 << 13, 1 << 14
NET_BIND, NET_CONNECT = 1, 2
SCOPE_ABSTRACT_SOCKET, SCOPE_SIGNAL = 1, 2
SIGNALS_CONFINED = 6
"""The version of Landlock from which on it confines signals."""
DEVICES = (
    "null",
    "zero",
    "full",
    "random",
    "urandom",
    "nvidia*",
    "nvidia-caps/*",
    "dri/*",
    "kfd",
    "davinci*",
    "hisi_hdc",
)

ISOLATION = "OPFORGE_ISOLATION"

# what a toolchain needs to be found and to be set up; everything else (tokens, paths of the user, CI marks) stays
# outside
_PASSED = """
PATH LANG TZ TERM LD_LIBRARY_PATH VIRTUAL_ENV CC CXX CPATH LIBRARY_PATH CPLUS_INCLUDE_PATH
MAX_JOBS CUDA_HOME CUDA_PATH ROCM_PATH
"""
PASSED = frozenset(_PASSED.split())
PASSED_PREFIXES = (
    "LC_",
    "PYTHON",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "TORCH",
    "PYTORCH_",
    "TRITON_",
    "TILELANG_",
    "TVM_",
    "CUDA_",
    "NVIDIA_",
    "HIP_",
    "ASCEND_",
)

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


def drop_privileges() -> bool:
    """Give up every capability, for this process and all it starts, whatever it executes; whether none is left. The
    user stays the same.
    """
    if sys.platform != "linux":
        return False
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    for capability in range(CAPABILITIES):
        prctl(PR_CAPBSET_DROP, capability)
    header, none = struct.pack("=Ii", CAPABILITY_VERSION, 0), bytes(24)
    return int(_libc().capset(header, none)) == 0


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> bool:
    """Whether the kernel took the setting."""
    return sys.platform == "linux" and int(_libc().prctl(option, ctypes.c_ulong(value), 0, 0, 0)) == 0


def landlock_version() -> int:
    """The version of Landlock's interface; 0 when the kernel has none."""
    if sys.platform != "linux":
        return 0
    version = int(_libc().syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1)))
    return max(0, version)


def environment_for_workers(environ: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The variables a worker starts with."""
    return {name: value for name, value in environ if name in PASSED or name.startswith(PASSED_PREFIXES)} | KEPT_MEMORY


def enter_namespaces() -> tuple[bool, bool]:
    """New user, process, network and IPC namespaces for the children of this process; whether they and the network one
    are there. The process must have one thread. User ids stay what they are."""
    if sys.platform != "linux":
        return False, False
    uid, gid = os.geteuid(), os.getegid()
    for flags in (
        CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC,
        CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWIPC,
    ):
        if _libc().unshare(flags) == 0:
            with contextlib.suppress(OSError):
                Path("/proc/self/setgroups").write_text("deny")
            with contextlib.suppress(OSError):
                Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
                Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
            return True, bool(flags & CLONE_NEWNET)
    return False, False


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


def confine_writes(writable: Iterable[Path], changeable: Iterable[Path] = ()) -> int:
    """From now on this process and what it starts can write only below `writable` and to a few devices, cannot open TCP
    connections, and cannot signal or trace processes outside. The version of Landlock used; 0 when there is none.

    changeable   folders in which files that are there may be written, and none made: a /proc of the worker's own
    """
    version = landlock_version()
    if not version:
        return 0
    handled = WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE
    handled |= REFER if version >= 2 else 0
    handled |= TRUNCATE if version >= 3 else 0
    attributes = struct.pack("=Q", handled)
    if version >= 4:
        attributes += struct.pack("=Q", NET_BIND | NET_CONNECT)
    if version >= 6:
        attributes += struct.pack("=Q", SCOPE_ABSTRACT_SOCKET | SCOPE_SIGNAL)
    libc = _libc()
    ruleset = int(libc.syscall(LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0)))
    if ruleset < 0:
        return 0
    devices = [path for pattern in DEVICES for path in Path("/dev").glob(pattern)]
    try:
        for path, rights in [(path, handled) for path in writable] + [
            (path, WRITE_FILE | (TRUNCATE & handled)) for path in (*devices, *changeable)
        ]:
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
                rule = struct.pack("=Qi", rights, descriptor)
                libc.syscall(
                    LANDLOCK_ADD_RULE,
                    ctypes.c_int(ruleset),
                    ctypes.c_int(LANDLOCK_RULE_PATH_BENEATH),
                    rule,
                    ctypes.c_uint(0),
                )
                os.close(descriptor)
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        done = libc.syscall(LANDLOCK_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0)) == 0
    finally:
        os.close(ruleset)
    return version if done else 0


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
