"""One measurement at a time on a device: two searches on one GPU, or on one machine's processors, wait for each
other.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from opforge.core.language.user_folders import cache_folder


@contextlib.contextmanager
def alone_on(device: str, what: str = "") -> Iterator[None]:
    """Hold the device (a torch device type; which GPU it is, CUDA_VISIBLE_DEVICES and its relatives say), or `what` of
    it. Given back by the system if this process dies. A cache folder that cannot be written holds nobody up.
    """
    handle = _open(device, what)
    if handle is None:
        yield
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def lock_file(device: str, what: str = "") -> Path:
    """Where the lock lies: one for each set of visible devices."""
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
    visible = "" if device == "cpu" else repr([os.environ.get(name, "0") for name in names])
    return cache_folder() / "measuring" / f"{device}{what}-{hashlib.sha256(visible.encode()).hexdigest()[:8]}.lock"


def _open(device: str, what: str) -> int | None:
    file = lock_file(device, what)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        return os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    return None
