"""When a compiler runs inside of a call: whoever waits for the call is told, since a compiler may take longer than a
kernel.

Backends that compile at the first call surround their compiler, and nothing of the kernel's own code, with
`compiling()`. A worker says so to its parent (runner/worker/process.py); elsewhere nobody listens, and nothing happens.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

_lock = threading.RLock()
_depth = 0
_listener: tuple[Callable[[bool], None], int] | None = None
_unseen = False
_told_s = 0.0
GOT_ON_S = 1.0


def listen(listener: Callable[[bool], None]) -> None:
    """From now on `listener(True)` is called when a compiler begins in this process, and `listener(False)` when the
    last one has ended; not in a process that is forked from it.
    """
    global _listener
    _listener = listener, os.getpid()


def report(install: Callable[[], bool]) -> None:
    """Where somebody listens, install what a compiler reports through; nobody's compiler is touched elsewhere. Where
    that fails, a first call may be a compiler's from its beginning to its end: `unseen`.
    """
    global _unseen
    if _listener is not None and not install():
        _unseen = True


def unseen() -> bool:
    """Whether a compiler may run in this process and say nothing."""
    return _unseen


def began() -> None:
    """A compiler begins. Several may, one inside of another or on several threads."""
    _step(1)


def ended() -> None:
    """A compiler has ended."""
    _step(-1)


def all_ended() -> None:
    """Whatever has begun is over: for who knows it, where a compiler may have ended without a word."""
    _step(-_depth)


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Surround a compiler."""
    began()
    try:
        yield
    finally:
        ended()


def _step(by: int) -> None:
    global _depth
    with _lock:
        before, _depth = _depth, max(0, _depth + by)
        if bool(before) is not bool(_depth) and _listener is not None and _listener[1] == os.getpid():
            _listener[0](bool(_depth))


def got_on() -> None:
    """An interpreter has done a part of a call: told once a second at most, as a compiler that ends as it begins."""
    global _told_s
    now = time.monotonic()
    if now - _told_s >= GOT_ON_S:
        _told_s = now
        with compiling():
            pass


def around_triton() -> bool:
    """Let Triton say when it compiles a kernel that is launched, once in a process. False where this Triton has no such
    place. Its hooks are none: with one set, constants of a kernel have to be JSON, which functions are not.
    """
    from triton.runtime.jit import JITFunction

    compiler = getattr(JITFunction, "_do_compile", None)
    if compiler is None:
        return False
    if not hasattr(compiler, "reports"):

        @wraps(compiler)
        def compile_inside(*args: Any, **kwargs: Any) -> Any:
            with compiling():
                return compiler(*args, **kwargs)

        compile_inside.reports = True  # type: ignore[attr-defined]
        JITFunction._do_compile = compile_inside
    return True
