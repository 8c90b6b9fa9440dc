"""Records that could not be added because somebody holds a lock on the store: kept in a file beside it, and added when
the lock is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from opforge.core.language.errors import OpforgeError
from opforge.store.connection import Held
from opforge.store.files import sync_folder

LOCK_S = 5.0


def place_of(store: Path) -> Path:
    """The file beside a store: JSON lines, as an export has them."""
    return store.with_name(f"{store.name}.waiting.jsonl")


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """The file, locked against others who add to it or empty it; the one that the name means now. A lock that is not
    let go is not waited for longer than LOCK_S.
    """
    deadline = time.monotonic() + LOCK_S
    while True:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
        try:
            while time.monotonic() < deadline:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(0.02)
            if os.fstat(descriptor).st_nlink:
                yield descriptor
                return
        finally:
            os.close(descriptor)


def keep(store: Path, bodies: Sequence[str]) -> Path:
    """Append records to the file beside a store; where it lies. They are on the disk when this returns. Raises
    OSError.
    """
    path = place_of(store)
    with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as descriptor:
        left = "".join(f"{body}\n" for body in bodies).encode()
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    sync_folder(path.parent)
    return path


def set_down(store: Path | None, bodies: Sequence[str], held: Held) -> str:
    """Keep records beside a store on which somebody has a lock: a run must not lose them for that. What to tell a
    person; raises `held` where they can't be kept.
    """
    try:
        if store is None:
            raise held
        place = keep(store, bodies)
    except OSError as error:
        raise held from error
    return (
        f"{str(held).split('. Find')[0]}: records wait in {place}, and are added when the store is opened next. "
        f"Or add them with: opforge records import {place}"
    )


def taken(store: Path, add: Callable[[list[str]], int]) -> tuple[str, ...]:
    """Add what an earlier run had to set down beside a store; what to tell a person."""
    try:
        added = take(store, add)
    except (OpforgeError, OSError) as error:
        return (f"What waits in {place_of(store)} was not added: {error}",)
    return (f"{added} records of an earlier run, which had waited for a lock on {store}, were added.",) if added else ()


def take(store: Path, add: Callable[[list[str]], int]) -> int:
    """Add what waits beside a store, and remove the file; how many records were new. Adding twice is safe: what `add`
    raises leaves the file as it is.
    """
    path = place_of(store)
    if not path.exists():
        return 0
    with contextlib.suppress(FileNotFoundError), _opened(path, os.O_RDWR) as descriptor:
        with os.fdopen(os.dup(descriptor), encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
        # a line that was not finished is nobody's record: its writer was told of it
        whole = [line for line in lines if line.endswith("}")]
        added = add(whole) if whole else 0
        path.unlink()
        return added
    return 0
