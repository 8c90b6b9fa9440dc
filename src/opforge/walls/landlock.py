"""Landlock (Linux 5.13): which files a process and all that it starts may write, and read."""

from __future__ import annotations

import ctypes
import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # no import at run time: inside.py is waited for
    from collections.abc import Iterable, Iterator
    from os import PathLike

PR_SET_NO_NEW_PRIVS = 38
# the same numbers on x86-64 and arm64; see linux/landlock.h
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_RULE_PATH_BENEATH = 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 5
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


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def landlock_version() -> int:
    """The version of Landlock's interface; 0 when the kernel has none."""
    if sys.platform != "linux":
        return 0
    version = int(_libc().syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1)))
    return max(0, version)


def confine(
    writable: Iterable[str | PathLike[str]],
    changeable: Iterable[str | PathLike[str]] = (),
    readable: Iterable[str | PathLike[str]] | None = None,
) -> int:
    """From now on this process and what it starts can write only below `writable` and to a few devices, cannot open TCP
    connections, and cannot signal or trace processes outside. The version of Landlock used; 0 when there is none.

    changeable   folders in which files that are there may be written, and none made: a /proc of the worker's own
    readable     files and folders that may be read and executed, besides those that may be written; None: all
    """
    version = landlock_version()
    if not version:
        return 0
    reading = READ_FILE | READ_DIR | EXECUTE if readable is not None else 0
    writing = WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE
    writing |= REFER if version >= 2 else 0
    writing |= TRUNCATE if version >= 3 else 0
    attributes = struct.pack("=Q", writing | reading)
    if version >= 4:
        attributes += struct.pack("=Q", NET_BIND | NET_CONNECT)
    if version >= 6:
        attributes += struct.pack("=Q", SCOPE_ABSTRACT_SOCKET | SCOPE_SIGNAL)
    libc = _libc()
    ruleset = int(libc.syscall(LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0)))
    if ruleset < 0:
        return 0
    looked_at = reading & (READ_FILE | READ_DIR)
    try:
        for path, rights in (
            *((path, writing | looked_at) for path in writable),
            *((path, WRITE_FILE | (TRUNCATE & writing) | looked_at) for path in (*devices(), *changeable)),
            *((path, reading) for path in readable or ()),
        ):
            _allow(ruleset, path, rights)
        libc.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0)
        done = libc.syscall(LANDLOCK_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0)) == 0
    finally:
        os.close(ruleset)
    return version if done else 0


def devices() -> Iterator[str]:
    """Device nodes that every process may use."""
    for pattern in DEVICES:
        folder, begin = os.path.split(f"/dev/{pattern}")
        if not pattern.endswith("*"):
            yield f"/dev/{pattern}"
        else:
            try:
                names = os.listdir(folder)
            except OSError:
                # not there, or walls stand already
                continue
            yield from (f"{folder}/{name}" for name in names if name.startswith(begin[:-1]))


def _allow(ruleset: int, path: str | PathLike[str], rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not os.path.isdir(path):
        # what is asked of folders is refused for files
        rights &= EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
    rule = struct.pack("=Qi", rights, descriptor)
    _libc().syscall(
        LANDLOCK_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(LANDLOCK_RULE_PATH_BENEATH), rule, ctypes.c_uint(0)
    )
    os.close(descriptor)
