"""Reaching the database: engines, making the tables, and what its errors mean to a person."""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from opforge.core.language.errors import EnvironmentLacks, OpforgeError, UsageError
from opforge.store.rows import Damaged
from opforge.store.schema import ADDED, APPLICATION, SCHEMA, tables

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine

T = TypeVar("T")
BUSY_S = 30.0


class Held(EnvironmentLacks):
    """Somebody holds a lock on the store, and has not let go of it."""


_LOCK = 0x6F70_6667
"""PostgreSQL's advisory lock under which tables are made."""


def file_engine(path: Path) -> Engine:
    """An engine on a SQLite file. Commits are on the disk when they return (synchronous = FULL); writers take their
    turn from
    the first statement on (BEGIN IMMEDIATE), so that none finds at its end that another was quicker."""
    from sqlalchemy import create_engine, event
    from sqlalchemy.engine import URL

    engine = create_engine(URL.create("sqlite", database=str(path)), connect_args={"timeout": BUSY_S})

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        # None: sqlite3 must not open transactions by itself, they are opened below
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_S * 1000)}")
        connection.execute("PRAGMA synchronous = FULL")

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN")

    return engine


def server_engine(text: str) -> Engine:
    """An engine on any other URL of SQLAlchemy. Raises UsageError for a malformed one, EnvironmentLacks for an absent
    driver.
    """
    from sqlalchemy import create_engine
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    url = parsed(text)
    if url.drivername == "postgresql" and importlib.util.find_spec("psycopg") is not None:
        url = url.set(drivername="postgresql+psycopg")
    try:
        return create_engine(url, pool_pre_ping=True)
    except NoSuchModuleError as error:
        raise UsageError(
            f"No database is called {url.drivername!r}. Use a path, or a URL such as postgresql://user@host/database."
        ) from error
    except ArgumentError as error:
        raise UsageError(
            f"The store's URL is not understood: {error}. Write postgresql://user@host/database."
        ) from error
    except ImportError as error:
        if not url.drivername.startswith("postgresql"):
            raise UsageError(
                f"Records are kept in SQLite or PostgreSQL, not in {url.drivername}. Use a path, or a URL such as "
                "postgresql://user@host/database."
            ) from error
        raise EnvironmentLacks(
            f"The driver for {url.drivername} is not installed ({error}). Install it with: pip install "
            "'psycopg[binary]'"
        ) from error


def parsed(text: str) -> URL:
    """A store's URL. Raises UsageError for a malformed one; the text is not repeated, it may hold a password."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(text)
    except (ArgumentError, ValueError) as error:
        raise UsageError(
            "The store's URL is not understood. Write a path for SQLite, or "
            "postgresql://user:password@host:port/database."
        ) from error


def make_file(engine: Engine, where: str) -> None:
    """Make the tables in a SQLite file where they are missing, in one transaction, and put it into WAL mode.

    Raises UsageError when a newer opforge made it, or another program; the file is not changed then.
    """

    def look() -> int:
        with contextlib.closing(engine.raw_connection()) as raw:
            cursor = raw.cursor()
            version = int(cursor.execute("PRAGMA user_version").fetchone()[0])
            application = int(cursor.execute("PRAGMA application_id").fetchone()[0])
            filled = int(cursor.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
        if filled and application != APPLICATION:
            raise UsageError(
                f"{where} is a database of another program, and is left as it is. Choose another file for the store."
            )
        refuse_newer(version, where)
        return version

    def make() -> None:
        if look() < SCHEMA:
            with engine.execution_options(writes=True).begin() as connection:
                _make_tables(connection)
                connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION}")
                connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA}")
        with contextlib.closing(engine.raw_connection()) as raw:
            raw.cursor().execute("PRAGMA journal_mode = WAL").fetchone()

    patiently(make, where)


def make_server(engine: Engine, where: str) -> None:
    """Make the tables in a server's database where they are missing. Raises UsageError when a newer opforge
    made them.
    """

    def make() -> None:
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
            refuse_newer(_make_tables(connection), where)

    patiently(make, where)


def refuse_newer(version: int, where: str) -> None:
    """Raises UsageError when a store's schema is newer than this opforge."""
    if version > SCHEMA:
        raise UsageError(
            f"The store {where} was written by a newer opforge (schema {version}, this one knows {SCHEMA}); it was "
            "not touched. "
            "Install a newer opforge, or name another store with OPFORGE_STORE."
        )


def _make_tables(connection: Any) -> int:
    """Make what is missing, bring an older schema up to this one; the schema's version as the meta table has it
    then.
    """
    from sqlalchemy import insert, select, update

    known = tables()
    known.metadata.create_all(connection)
    version = connection.execute(select(known.meta.c.value).where(known.meta.c.key == "schema")).scalar()
    if version is None:
        connection.execute(insert(known.meta).values(key="schema", value=str(SCHEMA)))
        return SCHEMA
    for newer in range(int(version) + 1, SCHEMA + 1):
        for name in ADDED[newer]:
            kind = known.records.c[name].type.compile(connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE records ADD COLUMN {name} {kind}")
        connection.execute(update(known.meta).where(known.meta.c.key == "schema").values(value=str(newer)))
    if int(version) < SCHEMA:
        for index in known.records.indexes:
            index.create(connection, checkfirst=True)
    return max(int(version), SCHEMA)


def patiently(
    work: Callable[[], T],
    where: str,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """The result of `work`, tried again for BUSY_S while the database says that it is locked: going into WAL mode and
    recovering after a crash do not wait for others by themselves. Other errors of the database become OpforgeErrors."""
    import sqlite3

    from sqlalchemy.exc import SQLAlchemyError

    deadline, pause = clock() + BUSY_S, 0.01
    while True:
        try:
            return work()
        except (SQLAlchemyError, sqlite3.Error) as error:
            if not _is_locked(error) or clock() > deadline:
                raise spoken(error, where) from error
        sleep(pause)
        pause = min(0.5, pause * 2)


def spoken(error: Exception, where: str) -> OpforgeError:
    """What a database's error means, and what to do."""
    complaint = str(getattr(error, "orig", None) or error).strip()
    lower = complaint.lower()
    if any(sign in lower for sign in ("malformed", "not a database", "file is encrypted")):
        return Damaged(f"The store {where} is damaged ({complaint})")
    if any(sign in lower for sign in ("disk is full", "disk full", "no space")):
        return EnvironmentLacks(
            f"No space is left for the store {where}; this was not recorded, the rest is intact. Free some space, or "
            "point OPFORGE_STORE elsewhere."
        )
    if any(sign in lower for sign in ("readonly", "read-only", "unable to open", "permission denied")):
        return EnvironmentLacks(
            f"The store {where} cannot be written ({complaint}). Change its permissions, or point OPFORGE_STORE at a "
            "file in a folder of yours."
        )
    if _is_locked(error):
        return Held(
            f"Another process has held the store {where} for more than {BUSY_S:.0f} s. Find it with: fuser {where}"
        )
    if "disk i/o" in lower:
        return EnvironmentLacks(
            f"The disk under the store {where} fails ({complaint}). Look with: df -h, dmesg; or point OPFORGE_STORE "
            "elsewhere."
        )
    if any(
        sign in lower for sign in ("connection", "could not connect", "refused", "authentication", "does not exist")
    ):
        return EnvironmentLacks(
            f"The store {where} cannot be reached ({complaint.splitlines()[0]}). Start the server, or correct "
            "OPFORGE_STORE."
        )
    return OpforgeError(f"The store {where} refused: {complaint}. Look at it with: opforge doctor")


def _is_locked(error: Exception) -> bool:
    complaint = str(getattr(error, "orig", None) or error).lower()
    return "locked" in complaint or "database is busy" in complaint
