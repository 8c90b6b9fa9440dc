"""The store: append-only records in SQLite, or in any database that SQLAlchemy reaches."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from opforge.core.errors import OpforgeError, UsageError
from opforge.core.record import Record
from opforge.store import connection, files, questions
from opforge.store.answers import Health, Point
from opforge.store.rows import Damaged, Row, point_of, read_rows, record_of, row_of
from opforge.store.schema import SCHEMA, tables

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

T = TypeVar("T")
CHUNK = 500


class Store:
    """Records that are added and never changed. What `add` has taken is on the disk when it returns.

    Several processes may use one store at once; each opens it for itself, after a fork too. Made by `Store.open`.

    url       where the records are, a password hidden
    notices   what a person should be told: a damaged file was set aside, the file lies on a network file system
    """

    def __init__(self, engine: Engine, url: str, path: Path | None, notices: tuple[str, ...]) -> None:
        self.url = url
        self.notices = notices
        self._engine = engine
        self._path = path
        self._file = _identity(path)

    @classmethod
    def open(cls, where: str | os.PathLike[str] | None = None) -> Store:
        """The store at a path or SQLAlchemy URL; without one, at $OPFORGE_STORE, else records.sqlite in the user's data folder.

        It is made where there is none. A SQLite file that cannot be read is renamed beside, what is readable in it goes into a
        new one, and `notices` says so. Raises UsageError for a file of another kind, a store written by a newer opforge (which
        is not touched) or a malformed URL; EnvironmentLacks for a folder that cannot be written, a full disk, a server or a
        driver that is not there.
        """
        text = os.fspath(where) if where is not None else files.default_location()
        if "://" in text:
            url = connection.parsed(text)
            if url.get_backend_name() != "sqlite":
                engine = connection.server_engine(text)
                shown = url.render_as_string(hide_password=True)
                try:
                    connection.make_server(engine, shown)
                except OpforgeError:
                    engine.dispose()
                    raise
                return cls(engine, shown, None, ())
            text = url.database or ""
        if text in ("", ":memory:"):
            raise UsageError("A store needs a file: records are kept. Name one with OPFORGE_STORE or --store.")
        path = Path(text).expanduser().absolute()
        files.prepare(path)
        notices: tuple[str, ...] = ()
        network = files.network_file_system(path)
        if network is not None:
            notices = (f"The store {path} lies on {network}, where SQLite's locks are not reliable. Keep it on a local disk, or use a server: OPFORGE_STORE=postgresql://…",)
        if files.refuse_foreign(path):
            notices += _rebuild(path, None)
        engine = connection.file_engine(path)
        try:
            connection.make_file(engine, str(path))
        except Damaged:
            engine.dispose()
            notices += _rebuild(path, _identity(path))
            engine = connection.file_engine(path)
            connection.make_file(engine, str(path))
        return cls(engine, str(path), path, notices)

    def close(self) -> None:
        """Let the database go. The store opens again by itself when it is asked something."""
        self._engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def add(self, records: Iterable[Record]) -> int:
        """Add records, all or none; how many were new. They are durable when this returns.

        A record that is there already is passed over, so that adding again after a doubtful end is safe. Raises UsageError
        for an id that is taken by another fact, or a record that may not be kept (see `rows.row_of`).
        """
        rows = [row_of(record) for record in records]
        return self._do(lambda database: _insert(database, rows), writes=True) if rows else 0

    def query(
        self,
        operator: str | None = None,
        implementation: str | None = None,
        workload: str | None = None,
        dtype: str | None = None,
        device: str | None = None,
        fingerprint: str | None = None,
        run: str | None = None,
        since: str | None = None,
        limit: int | None = None,
    ) -> list[Record]:
        """The records that match everything given, newest last; the newest `limit` of them. `since` is an ISO time with a zone."""
        column = tables().records.c
        given = (operator, implementation, workload, dtype, device, fingerprint, run)
        statement = questions.matching((column.body, column.sha256), dict(zip(questions.COLUMNS, given, strict=True)), since, limit)
        return [record_of(body, sha256) for body, sha256 in reversed(self._rows(statement))]

    def series(
        self,
        operator: str | None = None,
        implementation: str | None = None,
        workload: str | None = None,
        dtype: str | None = None,
        device: str | None = None,
        fingerprint: str | None = None,
        since: str | None = None,
        limit: int | None = None,
        timed: bool = False,
    ) -> list[Point]:
        """A history as Points, newest last: as `query`, without reading the records' bodies. `timed`: those with a time alone."""
        column = tables().records.c
        given = (operator, implementation, workload, dtype, device, fingerprint, None)
        statement = questions.matching(questions.point_columns(), dict(zip(questions.COLUMNS, given, strict=True)), since, limit)
        if timed:
            statement = statement.where(column.median_s.is_not(None))
        names = tuple(field.name for field in dataclasses.fields(Point))
        found = [Point(**dict(zip(names, row, strict=True))) for row in reversed(self._rows(statement))]
        # rows from before schema 2 have the whole fact in their body alone
        old = [point.id for point in found if point.suspect is None]
        completed: dict[str, Point] = {}
        for part in _chunks(old):
            bodies = self._rows(questions.matching((column.body, column.sha256), {}, None, None).where(column.id.in_(part)))
            completed |= {point.id: point for point in (point_of(record_of(body, sha256)) for body, sha256 in bodies)}
        return [completed.get(point.id, point) for point in found] if old else found

    def newest_run(self, *, timed: bool = True) -> str | None:
        """The run of the newest record (of the newest that was timed); None in an empty store."""
        from sqlalchemy import select

        column = tables().records.c
        statement = select(column.run).order_by(column.created_at.desc(), column.sequence.desc()).limit(1)
        found = self._rows(statement.where(column.median_s.is_not(None)) if timed else statement)
        return str(found[0][0]) if found else None

    def get(self, identity: str) -> Record:
        """The record with this id, or whose id alone begins so. Raises UsageError when there is none, or several."""
        prefix = identity.strip().lower()
        if not prefix or not set(prefix) <= set("0123456789abcdef-"):
            raise UsageError(f"{identity!r:.60} is not the id of a record. Ids are hexadecimal; see them with: opforge records")
        found = self._rows(questions.with_prefix(prefix))
        exact = [row for row in found if row[0] == prefix]
        if not found:
            raise UsageError(f"No record's id begins with {prefix!r}. See the newest with: opforge records")
        if len(found) > 1 and not exact:
            raise UsageError(f"{prefix!r} begins the ids of several records: {', '.join(row[0] for row in found)}. Give more digits.")
        _, body, sha256 = (exact or found)[0]
        return record_of(body, sha256)

    def passes(self, operator: str, device: str, dtype: str, *, workload: str | None = None, fingerprint: str | None = None) -> list[Record]:
        """For each implementation × workload × fingerprint its newest record, where that is a Pass; newest last.

        The newest decides: an older Pass under a newer failure is not given, nor one that is older than a failure of the same
        implementation on the operator's cases. What dispatch may choose from; whether the source is still the same
        (`source_sha256`) is the caller's question.
        """
        failed: dict[str, str] = dict(map(tuple, self._rows(questions.newest_failures(operator, device, dtype))))
        found = self._rows(questions.newest_passes(operator, device, dtype, workload, fingerprint))
        return [record_of(body, sha256) for implementation, created_at, _, body, sha256 in reversed(found) if implementation not in failed or created_at > failed[implementation]]

    def best(self, operator: str, device: str, dtype: str, *, workload: str, fingerprint: str | None = None) -> Record | None:
        """Among `passes`, the one with the least median; None where nothing was timed. An old lucky run is not among them."""
        timed = [(record.timing.median_s, record) for record in self.passes(operator, device, dtype, workload=workload, fingerprint=fingerprint) if record.timing]
        return min(timed, key=lambda entry: entry[0])[1] if timed else None

    def export(
        self,
        operator: str | None = None,
        implementation: str | None = None,
        workload: str | None = None,
        dtype: str | None = None,
        device: str | None = None,
        fingerprint: str | None = None,
        run: str | None = None,
        since: str | None = None,
    ) -> Iterator[str]:
        """The matching records as lines of JSON, oldest first, each checked against its checksum, CHUNK of them in memory at once."""
        column = tables().records.c
        given = (operator, implementation, workload, dtype, device, fingerprint, run)
        filters = dict(zip(questions.COLUMNS, given, strict=True))
        order = [sequence for (sequence,) in reversed(self._rows(questions.matching((column.sequence,), filters, since, None)))]
        for part in _chunks(order):
            statement = questions.matching((column.sequence, column.body, column.sha256), {}, None, None).where(column.sequence.in_(part))
            for _, body, sha256 in reversed(self._rows(statement)):
                record_of(body, sha256)
                yield body

    def import_lines(self, lines: Iterable[str]) -> int:
        """Add the records that lines of JSON hold, all or none; how many were new. Nothing in them is executed.

        Every line is validated before the first is written, into a scratch file, so that a slow source holds no lock.
        Raises UsageError that names the first bad line and what to do.
        """
        with tempfile.TemporaryFile("w+", encoding="utf-8", prefix="opforge-import-") as scratch:
            for row in read_rows(lines):
                scratch.write(json.dumps(row) + "\n")

            def write(database: Connection) -> int:
                scratch.seek(0)
                return sum(_insert(database, [json.loads(line) for line in part]) for part in _chunks(scratch))

            return self._do(write, writes=True)

    def doctor(self) -> Health:
        """Read everything: the database's own check of its pages, and every record against its checksum.

        A SQLite file with a problem is set aside and what can be read of it goes into a new one; `problems` says so.
        """
        from sqlalchemy import func, select

        records = tables().records
        problems: list[str] = []
        if self._path is not None:
            found = [str(line) for (line,) in self._do(lambda database: database.exec_driver_sql("PRAGMA integrity_check(20)").fetchall())]
            problems += [] if found == ["ok"] else [f"SQLite finds: {line}" for line in found]
        count, last = self._rows(select(func.count(), func.max(records.c.sequence)))[0]
        wrong = 0
        for start in range(0, (last or 0) + 1, CHUNK):
            statement = select(records.c.body, records.c.sha256).where(records.c.sequence > start, records.c.sequence <= start + CHUNK)
            wrong += sum(not _matches(body, sha256) for body, sha256 in self._rows(statement))
        if wrong:
            problems.append(f"{wrong} of {count} records do not match their checksums")
        if problems and self._path is not None:
            problems += self._replace()
        return Health(schema=SCHEMA, records=int(count), problems=tuple(problems), notices=self.notices)

    def _rows(self, statement: Any) -> Sequence[Any]:
        return self._do(lambda database: database.execute(statement).fetchall())

    def _do(self, work: Callable[[Connection], T], *, writes: bool = False) -> T:
        """The result of `work` in one transaction; Damaged sets the file aside and is raised with what became of it."""

        def once() -> T:
            with self._engine.execution_options(writes=writes).begin() as database:
                return work(database)

        while True:
            self._follow()
            try:
                found = connection.patiently(once, self.url)
            except Damaged as error:
                raise self._set_aside(error) from error
            # moved away while it was written to: what was acknowledged must be where the next one looks. Adding again is safe
            if not writes or _identity(self._path) == self._file:
                return found

    def _follow(self) -> None:
        """Go on with the file that the store's name means now: an open one that was removed, or set aside by another process, takes
        records that nobody finds."""
        if self._path is None or _identity(self._path) == self._file:
            return
        self._engine.dispose()
        files.prepare(self._path)
        notices = _rebuild(self._path, None) if files.refuse_foreign(self._path) else ()
        connection.make_file(self._engine, self.url)
        self._file = _identity(self._path)
        self.notices += (*notices, f"The store {self._path} was moved or removed while it was open, and begun again.")

    def _set_aside(self, error: Damaged) -> Damaged:
        return Damaged(f"{error}. {' '.join(self._replace())} Run the command again.") if self._path is not None else error

    def _replace(self) -> tuple[str, ...]:
        """Set the file aside, go on with a new one of what could be read; what to tell a person."""
        assert self._path is not None
        self._engine.dispose()
        notices = _rebuild(self._path, self._file)
        connection.make_file(self._engine, self.url)
        self._file = _identity(self._path)
        self.notices += notices
        return notices


def _insert(database: Connection, rows: Sequence[Row]) -> int:
    """Insert the rows whose ids are new; how many. Raises UsageError for an id that another fact has."""
    from sqlalchemy import insert, select
    from sqlalchemy.exc import IntegrityError

    records = tables().records
    added = 0
    for part in _chunks(rows):
        asked = select(records.c.id, records.c.sha256).where(records.c.id.in_([row["id"] for row in part]))
        known: dict[str, str] = dict(map(tuple, database.execute(asked)))
        fresh: list[Row] = []
        for row in part:
            if row["id"] not in known:
                known[row["id"]] = row["sha256"]
                fresh.append(row)
            elif known[row["id"]] != row["sha256"]:
                raise UsageError(f"Record {row['id']} is in the store already and says something else. Records are never changed: give the new fact an id of its own.")
        if fresh:
            try:
                database.execute(insert(records), fresh)
            except IntegrityError as error:
                # on a server another writer may have been quicker between the question and the insertion
                raise UsageError(f"A record of the same id was added by another process at the same time ({error.orig}). Run the command again.") from error
        added += len(fresh)
    return added


def _rebuild(path: Path, seen: tuple[int, int] | None) -> tuple[str, ...]:
    """Set a damaged file aside and make a new store of what can be read; what to tell a person. `seen` is the damaged
    file's identity: where another process has replaced it meanwhile, nothing is done."""
    with files.locked(path):
        if (seen is not None and _identity(path) != seen) or (seen is None and not files.refuse_foreign(path)):
            return (f"The store {path} was damaged and has been replaced by another process.",)
        aside = files.set_aside(path)
        rows = files.salvage(aside)
        engine = connection.file_engine(path)
        try:
            connection.make_file(engine, str(path))
            with engine.execution_options(writes=True).begin() as database:
                kept = _insert(database, rows)
        finally:
            engine.dispose()
        files.sync_folder(path.parent)
    return (f"The store {path} was damaged. It was set aside as {aside}, and what could be read ({kept} records) is in a new store.",)


def _identity(path: Path | None) -> tuple[int, int] | None:
    try:
        status = path.stat() if path is not None else None
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if status is not None else None


def _matches(body: str, sha256: str) -> bool:
    try:
        record_of(body, sha256)
    except (Damaged, UsageError):
        return False
    return True


def _chunks(items: Iterable[T]) -> Iterator[list[T]]:
    iterator = iter(items)
    while part := list(islice(iterator, CHUNK)):
        yield part
