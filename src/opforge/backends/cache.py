"""A store of compiled files, named by everything that went into them.

An entry is a folder `<key>/` with the file and `entry.json`, which holds the file's SHA-256. It is written into a
temporary folder beside, flushed, and renamed: readers see the whole entry or none. Writers of one key wait for each
other on a kernel lock, which a dying process lets go. What does not match its hash is set aside and built again.
What was used longest ago goes when the store has grown to KEPT_BYTES.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opforge.core.language.errors import EnvironmentLacks
from opforge.core.language.user_folders import cache_folder

DIGITS = 32
LOCK_WAIT_S = 200.0
"""What making one entry may take; the slowest CUDA kernel here takes two minutes."""
KEPT_BYTES = 4 << 30
"""What a store may hold."""
IDLE_S = 3600.0
"""Entries that were used since then are not removed, however full the store is."""


def cache_root() -> Path:
    """Where compiled kernels are kept: see core.language.user_folders."""
    return cache_folder()


def jit_folder(homes: Sequence[str], backend: str, source_sha256: str) -> Path:
    """Where compilers that run at a kernel's first call keep what they make: a folder of this code's own. What lies
    there is loaded without a question, Inductor's pickles among it: a kernel that may write to another's folder can
    spoil the other, or run in its place.
    """
    return cache_root() / "jit" / key_of({"homes": "\n".join(homes), "backend": backend, "source": source_sha256})[:16]


def jit_environment(folder: Path, dtype: str) -> dict[str, str]:
    """Environment variables that let those compilers keep what they make in such a folder.

    Inductor has a folder for each dtype: it compiles under locks, and workers of several dtypes compile at once. One
    that waits for another's lock does nothing, for longer than a hang is waited for.
    """
    places = {"TORCHINDUCTOR": f"torchinductor-{dtype}", "TRITON": "triton", "TILELANG": "tilelang"}
    return {f"{name}_CACHE_DIR": str(folder / place) for name, place in places.items()}


def key_of(parts: Mapping[str, str]) -> str:
    """The name of an entry made from these parts: text of the source and its headers, flags, compiler, target, …"""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:DIGITS]


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file in the store. `how` is "cached", "compiled" or "built ahead"."""

    path: Path
    how: str
    facts: Mapping[str, str]


class DamagedEntry(Exception):
    """An entry does not match its hash; it has been set aside."""


def lookup(folder: Path, name: str, how: str = "cached") -> Entry | None:
    """The entry in `folder`, or None. Raises DamagedEntry when its file is not what was written."""
    try:
        facts = json.loads((folder / "entry.json").read_text(encoding="utf-8"))
        digest = sha256_of(folder / name)
    except FileNotFoundError:
        if not folder.exists():
            return None
        raise DamagedEntry(f"{folder} is incomplete") from None
    except (ValueError, OSError) as error:
        raise DamagedEntry(f"{folder} cannot be read: {error}") from error
    if not isinstance(facts, dict) or facts.get("sha256") != digest:
        raise DamagedEntry(f"{folder / name} does not match its hash")
    return Entry(path=folder / name, how=how, facts=facts)


def facts_of(folder: Path) -> Mapping[str, str]:
    """What is kept beside the entry in `folder`; {} where there is none, or it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        facts = json.loads((folder / "entry.json").read_text(encoding="utf-8"))
        if isinstance(facts, dict):
            return facts
    return {}


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; other processes wait, for LOCK_WAIT_S at most: who may read the file may lock it.
    Raises EnvironmentLacks where nothing can be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as error:
        raise EnvironmentLacks(
            f"Compiled kernels cannot be kept in {path.parent} ({error.strerror}). Point OPFORGE_CACHE at a folder "
            "of yours."
        ) from error
    with file:
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN) or time.monotonic() > deadline:
                    # entries are whole or absent without it: two may make one at the same time, and who holds it for
                    # ever keeps nobody waiting for ever
                    break
                time.sleep(0.02)
            else:
                break
        yield


def ahead(folder: Path, name: str) -> Entry | None:
    """The entry that was built ahead into `folder`, or None. A damaged one is not used: the store builds its own."""
    with contextlib.suppress(DamagedEntry):
        return lookup(folder, name, "built ahead")
    return None


def obtain(root: Path, key: str, name: str, make: Callable[[Path], Mapping[str, str]]) -> Entry:
    """The file `name` for `key`, from the store or made now.

    make   writes the file at the path it is given, and returns facts to keep beside it
    """
    folder = root / key
    with contextlib.suppress(DamagedEntry):  # looked at again under the lock, where it can be set aside
        entry = lookup(folder, name)
        if entry is not None:
            # one that others keep may be for reading only
            with contextlib.suppress(OSError):
                os.utime(folder)
            return entry
    with locked(root / f"{key}.lock"):
        try:
            entry = lookup(folder, name)
        except DamagedEntry:
            entry = None
            aside = Path(tempfile.mkdtemp(prefix=f"damaged-{key}-", dir=root))
            folder.rename(aside / "entry")
        if entry is not None:
            return entry
        made = store(folder, name, make)
    trim(root)
    return made


def store(folder: Path, name: str, make: Callable[[Path], Mapping[str, str]]) -> Entry:
    """Make an entry in `folder`, whole or not at all. An entry already there is replaced."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"new-{folder.name}-", dir=folder.parent))
    try:
        facts = {**make(scratch / name), "sha256": sha256_of(scratch / name)}
        (scratch / "entry.json").write_text(json.dumps(facts, indent=1, sort_keys=True), encoding="utf-8")
        for path in (scratch / name, scratch / "entry.json", scratch):
            _flush(path)
        if folder.exists():
            shutil.rmtree(folder)
        scratch.rename(folder)
        _flush(folder.parent)
    finally:
        if scratch.exists():
            shutil.rmtree(scratch)
    return Entry(path=folder / name, how="compiled", facts=facts)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def trim(root: Path, largest_bytes: int = KEPT_BYTES, idle_s: float = IDLE_S) -> int:
    """Remove the entries used longest ago until the store is at most `largest_bytes`; bytes removed. What was used in
    the last `idle_s` seconds stays: it may be about to be loaded. What was set aside, or left half made by a process
    that was killed, is an entry like any other.
    """
    entries = []
    for folder in root.glob("*/"):
        with contextlib.suppress(OSError):  # gone meanwhile, or somebody else's
            entries.append(
                (
                    folder.stat().st_mtime,
                    folder,
                    sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
                )
            )
    total, removed, recent = sum(size for _, _, size in entries), 0, time.time() - idle_s
    for used, folder, size in sorted(entries):
        if total - removed <= largest_bytes or used > recent:
            break
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
            removed += size
    return removed
