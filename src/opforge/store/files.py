"""The file under a SQLite store: where it lies, on what file system, and what happens when it is damaged."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from opforge.core.language.errors import EnvironmentLacks, UsageError
from opforge.core.language.user_folders import data_folder
from opforge.store.rows import Damaged, RowValues, record_of, row_of
from opforge.store.schema import APPLICATION

MAGIC = b"SQLite format 3\0"
SUFFIXES = (".sqlite", ".sqlite3", ".db")
NETWORK = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "glusterfs",
    "pvfs2",
    "orangefs",
    "ocfs2",
    "virtiofs",
}
COMPANIONS = ("", "-wal", "-shm", "-journal")


def default_location(environ: Mapping[str, str] | None = None) -> str:
    """$OPFORGE_STORE (a path or an SQLAlchemy URL), or records.sqlite in the user's data folder."""
    given = (os.environ if environ is None else environ).get("OPFORGE_STORE")
    return given or str(data_folder(environ) / "records.sqlite")


def private_places(environ: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """What nobody but opforge has any business with: the store's files, and the folder of them where that is opforge's
    own. A reader of them could keep
    a lock on the records, and so keep new ones out."""
    location = default_location(environ)
    if "://" in location:
        return ()
    path = Path(location).expanduser().absolute()
    files = (*(path.with_name(path.name + tail) for tail in COMPANIONS), lock_of(path))
    return (data_folder(environ), *files) if path.parent != data_folder(environ) else (path.parent,)


def lock_of(path: Path) -> Path:
    """The lock file beside a store."""
    return path.with_name(f".{path.name}.lock")


def prepare(path: Path) -> None:
    """Make the folder of a store and, where there is none, an empty file whose name is durable. Raises EnvironmentLacks
    when
    they cannot be made or written."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UsageError(f"{path} is not a regular file, which a store is. Name one, like records.sqlite")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.touch()
            sync_folder(path.parent)
    except OSError as error:
        raise EnvironmentLacks(
            f"The store {path} cannot be made ({error.strerror}). Point OPFORGE_STORE at a file in a folder of yours."
        ) from error
    writable = path if path.exists() else path.parent
    if not os.access(path.parent, os.W_OK | os.X_OK) or not os.access(writable, os.W_OK | os.R_OK):
        raise EnvironmentLacks(
            f"The store {path} cannot be written by this user. Change its permissions, or point OPFORGE_STORE at a "
            "file in a folder of yours."
        )


def refuse_foreign(path: Path) -> bool:
    """Whether the file is a damaged store: False for an absent, empty or sound-looking one, True when its first bytes
    are wrong.

    Raises UsageError for something else that must not be touched: a folder, a file of another kind, another program's
    database.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder; a store is a file. Name one, like {path / 'records.sqlite'}")
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        head = file.read(100)
    if not head.startswith(MAGIC):
        if path.suffix in SUFFIXES:
            return True
        raise UsageError(
            f"{path} is not a store of opforge, and is left as it is. Choose another file, or move this one away."
        )
    # bytes 68 to 71 hold the application id, 0 before anything was written
    application = int.from_bytes(head[68:72], "big")
    if application not in (0, APPLICATION):
        raise UsageError(
            f"{path} is a database of another program, and is left as it is. Choose another file for the store."
        )
    return False


def set_aside(path: Path) -> Path:
    """Rename a damaged store and what belongs to it, so that a new one can be made; where it lies now. Nothing is
    deleted.
    """
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S%f")
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    for tail in COMPANIONS:
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + tail).rename(aside.with_name(aside.name + tail))
    return aside


def salvage(aside: Path) -> list[RowValues]:
    """The rows that can still be read from a damaged store and match their checksums, in order of arrival.

    Read from a copy, so that what was set aside stays as it was found.
    """
    rows: dict[int, RowValues] = {}
    with tempfile.TemporaryDirectory(prefix=".salvage-", dir=aside.parent) as scratch:
        copy = Path(scratch) / "copy.sqlite"
        for tail in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(aside.with_name(aside.name + tail), copy.with_name(copy.name + tail))
        _pad(copy)
        for order in ("ASC", "DESC"):
            # reading stops at the first bad page; from the other end it may get to what lies behind
            with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(copy)) as connection:
                connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
                for sequence, body, sha256 in connection.execute(
                    f"SELECT sequence, body, sha256 FROM records ORDER BY sequence {order}"
                ):
                    if sequence in rows:
                        break
                    with contextlib.suppress(Damaged, UsageError):
                        rows[sequence] = row_of(record_of(str(body), str(sha256)))
    return [rows[sequence] for sequence in sorted(rows)]


def _pad(copy: Path) -> None:
    """Make a file that was cut off as long as its head says (page size at byte 16, pages at byte 28): SQLite refuses
    all of
    a shorter one, and reads what is there of one that ends in zeros."""
    with copy.open("r+b") as file:
        head = file.read(100)
        page = int.from_bytes(head[16:18], "big")
        size = (65536 if page == 1 else page) * int.from_bytes(head[28:32], "big")
        # a nonsensical head must not ask for a file of terabytes
        if head.startswith(MAGIC) and copy.stat().st_size < size <= 64 * max(copy.stat().st_size, 2**20):
            file.truncate(size)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file beside a store; a dying process lets it go. Only making and setting aside take it."""
    with lock_of(path).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def network_file_system(path: Path, mounts: str | None = None) -> str | None:
    """The kind of network file system that `path` lies on ("nfs4", "fuse.sshfs", …); None on a local or unknown one.

    mounts   the text of /proc/self/mountinfo

    >>> network_file_system(Path("/net/a.sqlite"), "36 1 0:52 / /net rw - nfs4 server:/x rw")
    'nfs4'
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
    resolved = path if path.is_absolute() else path.resolve()
    nearest, kind = -1, ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, tail = before.split(), after.split()
        if len(fields) < 5 or not tail:
            continue
        place = Path(fields[4].replace("\\040", " "))
        if resolved.is_relative_to(place) and len(place.parts) >= nearest:
            nearest, kind = len(place.parts), tail[0]
    return (
        kind
        if kind in NETWORK or kind in ("fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.rclone")
        else None
    )
