"""A process namespace for each worker (Linux): it can name itself and what it started, and nobody else: no sibling, no
server, no parent.

A small helper, forked before any toolchain is imported, makes each namespace with a first process that does nothing but
collect orphans; the server then forks the worker into it. The worker's parent is the server, so that its exit code is
its own, and a kernel is an ordinary process to which signals mean what they always do. When the first process is
killed, everything in the namespace ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import struct
import sys
from pathlib import Path

from opforge.walls.privileges import CLONE_NEWPID, PR_SET_PDEATHSIG, prctl

STARTED = struct.Struct("=q")
OWN = "/proc/self/ns/pid"


def outer_pid() -> int:
    """This process's id as the parent sees it, as long as /proc belongs to the namespace outside."""
    try:
        return int(str(Path("/proc/self").readlink()))
    except (OSError, ValueError):
        return os.getpid()


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


class Namespaces:
    """Makes process namespaces. `close` ends the helper, and with it every namespace that is left."""

    def __init__(self) -> None:
        self.sock, theirs = socket.socketpair()
        self.own = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
        self.helper = os.fork()
        if self.helper == 0:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.setsid()
            kept = sorted({theirs.fileno(), self.own})
            os.closerange(3, kept[0])
            os.closerange(kept[0] + 1, kept[1])
            os.closerange(kept[1] + 1, 256)
            _help(theirs, self.own)
        theirs.close()

    def new(self) -> tuple[int, int] | None:
        """A namespace, as a descriptor of its first process, and that process's id as the parent sees it; None where
        the kernel allows none.
        """
        try:
            self.sock.sendall(b"n")
            data, fds, _, _ = socket.recv_fds(self.sock, STARTED.size, 1)
        except OSError:
            return None
        if len(data) < STARTED.size or not fds:
            return None
        (outer,) = STARTED.unpack(data)
        return fds[0], int(outer)

    def fork_into(self, first: int) -> int:
        """As os.fork, the child being in the namespace of the process that the descriptor `first` is of. Raises
        OSError.
        """
        if _libc().setns(first, CLONE_NEWPID) != 0:
            raise OSError(ctypes.get_errno(), "no process can be put into a namespace of its own")
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid:
                _libc().setns(self.own, CLONE_NEWPID)
        return pid

    def close(self) -> None:
        self.sock.close()
        with contextlib.suppress(OSError):
            os.kill(self.helper, signal.SIGKILL)


def end(first: int) -> None:
    """End everything in a namespace, and give its descriptor back."""
    with contextlib.suppress(OSError):
        signal.pidfd_send_signal(first, signal.SIGKILL)
    os.close(first)


def _help(sock: socket.socket, own: int) -> None:
    """Answer requests until the server is gone. Does not return."""
    # orphans, and first processes that were killed, are collected by the kernel itself
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while sock.recv(1):
        first = _first(own)
        try:
            if first is None:
                sock.sendall(b"-")
            else:
                socket.send_fds(sock, [STARTED.pack(first[1])], [first[0]])
        finally:
            if first is not None:
                os.close(first[0])
    os._exit(0)


def _first(own: int) -> tuple[int, int] | None:
    libc = _libc()
    if not hasattr(os, "pidfd_open") or libc.unshare(CLONE_NEWPID) != 0:
        return None
    ours, theirs = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(theirs)
        os.close(ours)
        libc.setns(own, CLONE_NEWPID)
        return None
    if pid == 0:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.write(theirs, STARTED.pack(outer_pid()))
        os.closerange(0, 256)
        while True:
            signal.pause()
    os.close(theirs)
    try:
        data = os.read(ours, STARTED.size)
        if libc.setns(own, CLONE_NEWPID) != 0 or len(data) < STARTED.size:
            os.kill(pid, signal.SIGKILL)
            return None
        return os.pidfd_open(pid), int(STARTED.unpack(data)[0])
    finally:
        os.close(ours)


def possible() -> bool:
    """Whether this process may make process namespaces: asked of a child, which makes one and ends."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return False
    pid = os.fork()
    if pid == 0:
        os._exit(0 if _libc().unshare(CLONE_NEWPID) == 0 else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
