"""While a definition's own function computes, its code looks at nothing but its arguments: no call stack, no file.

A bound that is narrow when adequacy asks and wide when a kernel is judged makes a wrong kernel right. Python tells of
each look at a stack, however it is spelt (audit events); what PyTorch does for itself is left alone.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

LOOKS = {
    "sys._getframe": "the call stack",
    "sys._getframemodulename": "the call stack",
    "sys._current_frames": "the stacks of all threads",
    "sys._current_exceptions": "the exceptions of all threads",
    "sys.settrace": "what is executed (a trace)",
    "sys.setprofile": "what is executed (a profile)",
    "sys.addaudithook": "what this process does (an audit hook)",
    "gc.get_objects": "other code's objects",
    "gc.get_referrers": "other code's objects",
    "object.__getattr__": "the call stack, through a traceback",
    "ctypes.dlopen": "this process's memory",
    "ctypes.dlsym": "this process's memory",
    "ctypes.dlsym/handle": "this process's memory",
    "ctypes.string_at": "this process's memory",
    "ctypes.cdata": "this process's memory",
    "open": "a file",
    "os.listdir": "files",
    "os.scandir": "files",
    "os.system": "a program",
    "os.exec": "a program",
    "os.fork": "a process",
    "os.putenv": "the environment",
    "subprocess.Popen": "a program",
    "socket.connect": "the network",
    "_thread.start_new_thread": "a thread of its own",
}
"""Audit events, and what they look at in words."""
FRAME_PARTS = ("tb_frame", "gi_frame", "cr_frame", "f_back")
STANDARD = sysconfig.get_paths()["stdlib"]
"""What the standard library does, its caller does; an import reads files and looks at nothing."""

_state = threading.local()
_installed = threading.Lock()
_hooked = False


class Looked(Exception):
    """Raised into the code that looks."""


@contextmanager
def blind(folder: str, looked: list[str]) -> Iterator[None]:
    """While the block runs, what code of `folder` looks at is refused, and noted in `looked`; nothing where there is no
    folder, which is so of definitions that a program makes.
    """
    _install()
    before = getattr(_state, "home", None)
    _state.home = (folder, looked) if folder else None
    try:
        yield
    finally:
        _state.home = before


def _install() -> None:
    global _hooked
    with _installed:
        if not _hooked:
            sys.addaudithook(_heard)
            _hooked = True


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    home = getattr(_state, "home", None)
    if home is None or event not in LOOKS:
        return
    if event == "object.__getattr__" and arguments[1] not in FRAME_PARTS:
        return
    # nothing that is asked here is heard again
    _state.home = None
    try:
        if not _own(sys._getframe(1), home[0]):
            return
    finally:
        _state.home = home
    home[1].append(LOOKS[event])
    raise Looked(LOOKS[event])


def _own(frame: FrameType | None, folder: str) -> bool:
    """Whether the code that does it, or has the standard library's do it, is the definition's own, or of no file."""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith("<frozen importlib"):
            return False
        if name.startswith("<frozen ") or (name.startswith(STANDARD) and "-packages" not in name):
            frame = frame.f_back
            continue
        return name.startswith((folder, "<"))
    return False
