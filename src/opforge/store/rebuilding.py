"""A damaged SQLite file set aside, and a new store made of what can be read of it."""

from __future__ import annotations

from pathlib import Path

from opforge.store import connection, files
from opforge.store.insertion import insert


def rebuild(path: Path, seen: tuple[int, int] | None) -> tuple[str, ...]:
    """Set a damaged file aside and make a new store of what can be read; what to tell a person. `seen` is the damaged
    file's identity: where another process has replaced it meanwhile, nothing is done."""
    with files.locked(path):
        if (seen is not None and file_identity(path) != seen) or (seen is None and not files.refuse_foreign(path)):
            return (f"The store {path} was damaged and has been replaced by another process.",)
        aside = files.set_aside(path)
        rows = files.salvage(aside)
        engine = connection.file_engine(path)
        try:
            connection.make_file(engine, str(path))
            with engine.execution_options(writes=True).begin() as database:
                kept = insert(database, rows)
        finally:
            engine.dispose()
        files.sync_folder(path.parent)
    return (
        f"The store {path} was damaged. It was set aside as {aside}, and what could be read ({kept} records) is "
        "in a new store. See what there is with: opforge records",
    )


def file_identity(path: Path | None) -> tuple[int, int] | None:
    """Which file a path names now: its device and inode; None where there is none."""
    try:
        status = path.stat() if path is not None else None
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if status is not None else None
