"""Memory that judging gives back and asks for again at once, kept by this process meanwhile.

A page that comes from the system is zeroed and mapped first. Judging an output of 9.6 million elements asks for some
tens of tensors of 77 MB, one after the other: with fresh pages for each, a bench of silu (two kernels, two dtypes, two
cores) took 54 s of CPU, 26 of them in the system; with kept ones 26 s, 5 of them in the system.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
"""Numbers of glibc's malloc.h."""

KEPT = 1 << 30
"""Bytes at the end of the heap that are kept while something is judged."""

AFTERWARDS = ((M_MMAP_THRESHOLD, 32 << 20), (M_TRIM_THRESHOLD, 64 << 20), (M_MMAP_MAX, 1 << 16))
"""Where glibc's own, sliding thresholds stand once a tensor of 32 MB was freed."""

_lock = threading.Lock()
_inside = 0


@contextmanager
def pages_kept() -> Iterator[None]:
    """Inside, memory comes from the heap and stays there; afterwards it goes back to the system as ever. May be nested,
    and used by several threads. Nothing happens where malloc is not glibc's.
    """
    global _inside
    with _lock:
        _inside += 1
        if _inside == 1:
            _set(((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, KEPT)))
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _set(AFTERWARDS)


def _set(settings: tuple[tuple[int, int], ...]) -> None:
    mallopt = _mallopt()
    if mallopt is not None:
        for name, value in settings:
            mallopt(name, value)


@cache
def _mallopt() -> ctypes._NamedFuncPointer | None:
    # musl and macOS have none
    return getattr(ctypes.CDLL(None), "mallopt", None)
