"""What a process gives up for good: capabilities, the namespaces of its parent, life after its parent."""

from __future__ import annotations

import ctypes
import os
import struct
import sys

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_CHILD_SUBREAPER = 1, 4, 24, 38, 36
SIGKILL, SIGXCPU = 9, 24
CAPABILITIES, CAPABILITY_VERSION = 64, 0x20080522
CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x08000000, 0x10000000, 0x20000000, 0x40000000


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> bool:
    """Whether the kernel took the setting."""
    return sys.platform == "linux" and int(_libc().prctl(option, ctypes.c_ulong(value), 0, 0, 0)) == 0


def die_with(parent: int) -> None:
    """Ask the kernel to end this process when its parent goes (Linux); end it now where that has gone already."""
    prctl(PR_SET_PDEATHSIG, SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


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
            for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                try:
                    descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
                    os.write(descriptor, text.encode())
                    os.close(descriptor)
                except OSError:
                    # some kernels have no setgroups; without maps the user is nobody, and the walls stand
                    continue
            return True, bool(flags & CLONE_NEWNET)
    return False, False
