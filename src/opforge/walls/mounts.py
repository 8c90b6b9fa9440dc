"""A worker's own view of the file system (Linux mount namespaces): everything is read-only but a few folders, some
files are empty, and /proc shows the worker's own processes alone. Landlock confines what is written; only this keeps
modes and times of files as they are.
"""

from __future__ import annotations

import ctypes
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:  # no import at run time: inside.py is waited for
    from collections.abc import Iterable, Mapping, Sequence
    from os import PathLike
    from pathlib import Path

CLONE_NEWNS = 0x00020000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = (
    0x1,
    0x2,
    0x4,
    0x8,
    0x20,
    0x1000,
    0x4000,
    0x40000,
)
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 0x1
"""The same number on x86-64 and arm64; see linux/mount.h."""


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _mount(source: str, target: str, kind: str | None, flags: int) -> bool:
    return (
        int(
            _libc().mount(
                source.encode(), os.fsencode(target), kind.encode() if kind else None, ctypes.c_ulong(flags), None
            )
        )
        == 0
    )


def _attributes(target: str, *, add: int = 0, take: int = 0, below: bool = False) -> bool:
    attributes = struct.pack("=QQQQ", add, take, 0, 0)
    flags = AT_RECURSIVE if below else 0
    return (
        int(
            _libc().syscall(
                MOUNT_SETATTR,
                ctypes.c_int(AT_FDCWD),
                os.fsencode(target),
                ctypes.c_uint(flags),
                attributes,
                ctypes.c_size_t(len(attributes)),
            )
        )
        == 0
    )


def read_only(
    writable: Iterable[str | PathLike[str]],
    hidden: Iterable[str | PathLike[str]],
    empty: str | PathLike[str],
    shown: Mapping[Path, Iterable[Path]] | None = None,
) -> bool:
    """From now on this process and what it starts see a file system that is read-only outside `writable` folders;
    whether the kernel allowed it.

    hidden   files and folders that look empty, where they are there
    empty    a folder in which what hides them is made, not one of `writable`
    shown    folders, each with the files that alone are seen in it
    """
    if not _own_view():
        return False
    places = [os.path.realpath(place) for place in writable]
    places = [place for place in places if not any(place.startswith(f"{other}/") for other in places)]
    if not all(_mount(place, place, None, MS_BIND) for place in places):
        return False
    nothing = f"{os.fspath(empty)}/.nothing"
    for path in hidden:
        found = os.path.realpath(path)
        if os.path.isdir(found):
            os.makedirs(f"{nothing}.d", exist_ok=True)
            _mount(f"{nothing}.d", found, None, MS_BIND)
        elif os.path.exists(found):
            os.close(os.open(nothing, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            _mount(nothing, found, None, MS_BIND)
    for number, (folder, files) in enumerate((shown or {}).items()):
        _show(os.fspath(folder), [os.fspath(file) for file in files], f"{os.fspath(empty)}/.view{os.getpid()}-{number}")
    if not _attributes("/", add=MOUNT_ATTR_RDONLY, below=True):
        return False
    done = [_attributes(place, take=MOUNT_ATTR_RDONLY) for place in places]
    # drivers write there of their own process; what is another's belongs to another namespace, or needs privileges
    _attributes("/proc", take=MOUNT_ATTR_RDONLY)
    try:
        os.chdir(os.getcwd())  # the folder as it is seen now, not the one beneath it
    except OSError:
        # it is gone: the one that was is kept
        return all(done)
    return all(done)


def _show(folder: str, files: Sequence[str], view: str) -> bool:
    """Of what lies in a folder let only these files be seen, through a folder `view` that is made."""
    for file in files:
        place = os.path.join(view, os.path.relpath(file, folder))
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        if not _mount(file, place, None, MS_BIND):
            return False
    return _mount(view, folder, None, MS_BIND | MS_REC)


def own_proc() -> bool:
    """Show in /proc the processes of this namespace alone; whether the kernel allowed it (inside some containers it
    does not). A driver that finds itself
    in /proc under another number than it has does not work (NVIDIA's, 580: error 304)."""
    return _own_view() and _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def _own_view() -> bool:
    """From now on nobody else sees what is mounted here."""
    return _libc().unshare(CLONE_NEWNS) == 0 and _mount("none", "/", None, MS_REC | MS_PRIVATE)
