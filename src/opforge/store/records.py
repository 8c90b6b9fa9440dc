"""The store: append-only records in SQLite, or in any database that SQLAlchemy reaches."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from opforge.core.evidence.optimization import OptimizationRound
from opforge.core.evidence.record import Adoption, Record
from opforge.core.language.errors import OpforgeError, UsageError
from opforge.store import connection, deferred_writes, evidence_query, files, insertion, queries
from opforge.store.belief import Beliefs, Installation, believed
from opforge.store.connection import Held
from opforge.store.evidence_facts import Adopted, Fact
from opforge.store.insertion import CHUNK, chunks
from opforge.store.query_results import Health, HistoryEntry
from opforge.store.rebuilding import file_identity, rebuild
from opforge.store.rounds import insert_all, insert_rounds, rounds_matching
from opforge.store.rows import (
    Damaged,
    RowValues,
    adoption_of,
    adoption_row,
    intact,
    point_of,
    read_rows,
    record_of,
    round_of,
    round_row,
    row_of,
)
from opforge.store.schema import ADDED, SCHEMA, tables

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

T = TypeVar("T")


class Store:
    """Records that are added and never changed. What `add` has taken is on the disk when it returns.

    Several processes may use one store at once; each opens it for itself, after a fork too. Made by `Store.open`.

    url       where the records are, a password hidden
    left_out  ids of records that were damaged on disk one by one, and are in no answer
    damaged   whether this object found the file damaged: what it holds now is what could be read
    notices   what a person should be told: a damaged file was set aside, the file lies on a network file system; `tell`
              is called with those that come later
    """

    def __init__(self, engine: Engine, url: str, path: Path | None, notices: tuple[str, ...]) -> None:
        self.url = url
        self.notices = notices
        self._engine = engine
        self._path = path
        self._file = file_identity(path)
        self._held: Held | None = None
        self.damaged = False
        self.left_out: list[str] = []
        self.tell: Callable[[str], object] = lambda notice: None

    @classmethod
    def open(cls, where: str | os.PathLike[str] | None = None) -> Store:
        """The store at a path or SQLAlchemy URL; without one, at $OPFORGE_STORE, else records.sqlite in the user's data
        folder.

        It is made where there is none. A SQLite file that cannot be read is renamed beside, what is readable in it goes
        into a new one, and `notices` says so. Raises UsageError for a file of another kind, a store written by a newer
        opforge (which is not touched) or a malformed URL; EnvironmentLacks for a folder that cannot be written, a full
        disk, a server or a driver that is not there.
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
        damaged = False
        network = files.network_file_system(path)
        if network is not None:
            notices = (
                f"The store {path} lies on {network}, where SQLite's locks are not reliable. Keep it on a local "
                "disk, or use a server: OPFORGE_STORE=postgresql://…",
            )
        if files.refuse_foreign(path):
            damaged = True
            notices += rebuild(path, None)
        engine = connection.file_engine(path)
        try:
            connection.make_file(engine, str(path))
        except Damaged:
            engine.dispose()
            damaged = True
            notices += rebuild(path, file_identity(path))
            engine = connection.file_engine(path)
            connection.make_file(engine, str(path))
        opened = cls(engine, str(path), path, notices)
        opened.damaged = damaged
        opened.notices += deferred_writes.taken(path, opened.import_lines)
        return opened

    def close(self) -> None:
        """Let the database go. The store opens again by itself when it is asked something."""
        self._engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, records: Iterable[Record]) -> int:
        """Add records, all or none; how many were new. They are durable when this returns.

        A record that is there already is passed over, so that adding again after a doubtful end is safe. While somebody
        holds a lock on a SQLite store, they are kept in a file beside it, and `notices` says so. Raises UsageError for
        an id that is taken by another fact, or a record that may not be kept (see `rows.row_of`).
        """
        rows = [row_of(record) for record in records]
        if not rows:
            return 0
        try:
            if self._held is None:
                return self._do(lambda database: insertion.insert(database, rows), writes=True)
        except Held as held:
            self._held = held
        return self._set_down(rows, self._held)

    def _set_down(self, rows: Sequence[RowValues], held: Held) -> int:
        notice = deferred_writes.set_down(self._path, [row["body"] for row in rows], held)
        if notice not in self.notices:
            self.notices += (notice,)
            self.tell(notice)
        return len(rows)

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
        """The records that match everything given, newest last; the newest `limit` of them. `since` is an ISO time with
        a zone.
        """
        column = tables().records.c
        given = (operator, implementation, workload, dtype, device, fingerprint, run)
        statement = queries.matching(
            (column.id, column.body, column.sha256), dict(zip(queries.COLUMNS, given, strict=True)), since, limit
        )
        return list(self._sound(reversed(self._rows(statement))))

    def _sound(self, rows: Iterable[tuple[str, str, str]]) -> Iterator[Record]:
        """The records of rows (id, body, checksum). One that was damaged on disk is named and left out."""
        for identity, body, sha256 in rows:
            try:
                yield record_of(body, sha256)
            except Damaged:
                self.left_out.append(identity)
                self.tell(
                    f"record {identity[:12]} was damaged on disk and is left out; bring it back from an older export: "
                    "opforge records import FILE"
                )

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
    ) -> list[HistoryEntry]:
        """A history as Points, newest last: as `query`, without reading the records' bodies. `timed`: those with a time
        alone.
        """
        column = tables().records.c
        given = (operator, implementation, workload, dtype, device, fingerprint, None)
        statement = queries.matching(
            queries.point_columns(), dict(zip(queries.COLUMNS, given, strict=True)), since, limit
        )
        if timed:
            statement = statement.where(column.median_s.is_not(None))
        names = tuple(field.name for field in dataclasses.fields(HistoryEntry))
        entries = [HistoryEntry(**dict(zip(names, row, strict=True))) for row in reversed(self._rows(statement))]
        # rows from before schema 2 have the whole fact in their body alone
        old = [point.id for point in entries if point.suspect is None]
        completed: dict[str, HistoryEntry] = {}
        for part in chunks(old):
            bodies = self._rows(
                queries.matching((column.body, column.sha256), {}, None, None).where(column.id.in_(part))
            )
            completed |= {point.id: point for point in (point_of(record_of(body, sha256)) for body, sha256 in bodies)}
        return [completed.get(point.id, point) for point in entries] if old else entries

    def newest_run(self, *, timed: bool = True) -> str | None:
        """The run of the newest record (of the newest that was timed); None in an empty store."""
        from sqlalchemy import select

        column = tables().records.c
        statement = select(column.run).order_by(column.created_at.desc(), column.sequence.desc()).limit(1)
        rows = self._rows(statement.where(column.median_s.is_not(None)) if timed else statement)
        return str(rows[0][0]) if rows else None

    def get(self, identity: str) -> Record:
        """The record with this id, or whose id alone begins so. Raises UsageError when there is none, or several."""
        prefix = identity.strip().lower()
        if not prefix or not set(prefix) <= set("0123456789abcdef-"):
            raise UsageError(
                f"{identity!r:.60} is not the id of a record. Ids are hexadecimal; see them with: opforge records"
            )
        rows = self._rows(queries.with_prefix(prefix))
        exact = [row for row in rows if row[0] == prefix]
        if not rows:
            raise UsageError(f"No record's id begins with {prefix!r}. See the newest with: opforge records")
        if len(rows) > 1 and not exact:
            raise UsageError(
                f"{prefix!r} begins the ids of several records: {', '.join(row[0] for row in rows)}. Give more digits."
            )
        _, body, sha256 = (exact or rows)[0]
        return record_of(body, sha256)

    def facts(self, operator: str, here: Installation) -> tuple[list[Fact], list[Adopted]]:
        """What may be evidence of an operator's implementations as they are here: see store.evidence_query. Rows from
        before schemas 3 and 5 have their columns filled from their bodies, once.
        """
        try:
            return evidence_query.facts(self._asked, operator, here)
        except evidence_query.Unfilled as unfilled:
            self._fill(unfilled.identities)
        return self.facts(operator, here)

    def beliefs(self, operator: str, here: Installation) -> Beliefs:
        """What is believed of an operator's implementations: see store.belief."""
        facts, adopted = self.facts(operator, here)
        return believed(facts, here, adopted)

    def _fill(self, identities: Sequence[str]) -> None:
        """Write the columns of rows from before schemas 3 and 5, which have the whole fact in their bodies alone."""
        from sqlalchemy import bindparam, update

        column = tables().records.c
        names = (*ADDED[3], *ADDED[5])
        statement = (
            update(tables().records)
            .where(column.id == bindparam("which"))
            .values({name: bindparam(f"new_{name}") for name in names})
        )
        for part in chunks(identities):
            bodies = self._rows(
                queries.matching((column.body, column.sha256), {}, None, None).where(column.id.in_(part))
            )
            known = [row_of(record_of(body, sha256)) for body, sha256 in bodies]
            values = [{"which": row["id"], **{f"new_{name}": row[name] for name in names}} for row in known]
            self._do(partial(_execute, statement, values), writes=True)

    def adopt(self, adoptions: Iterable[Adoption]) -> int:
        """Keep what was found of records, which stay as they are; how many were new."""
        given = list(adoptions)
        return self._do(lambda database: insertion.adopt(database, given), writes=True) if given else 0

    def adoptions(self, operator: str | None = None) -> list[Adoption]:
        """What was adopted of an operator's records, or of all, oldest first."""
        return [adoption_of(body) for (body,) in self._rows(queries.adoptions(operator))]

    def keep_round(self, kept: OptimizationRound) -> None:
        """Keep a round of an optimisation; it is on the disk when this returns."""
        row = round_row(kept)
        self._do(lambda database: insert_rounds(database, [row]), writes=True)

    def rounds(
        self, operator: str | None = None, run: str | None = None, device: str | None = None
    ) -> list[OptimizationRound]:
        """The rounds of optimisations that match everything given, oldest first."""
        return [round_of(body, sha256) for body, sha256 in self._rows(rounds_matching(operator, run, device))]

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
        """The matching records as lines of JSON, oldest first, each checked against its checksum, CHUNK of them in
        memory at once.
        """
        column = tables().records.c
        given = (operator, implementation, workload, dtype, device, fingerprint, run)
        filters = dict(zip(queries.COLUMNS, given, strict=True))
        order = [
            sequence for (sequence,) in reversed(self._rows(queries.matching((column.sequence,), filters, since, None)))
        ]
        for part in chunks(order):
            statement = queries.matching((column.id, column.body, column.sha256), {}, None, None).where(
                column.sequence.in_(part)
            )
            for row in reversed(self._rows(statement)):
                for _ in self._sound([row]):
                    yield row[1]
        exported = {row[0] for row in self._rows(queries.matching((column.id,), filters, since, None))}
        for adoption in self.adoptions(operator):
            if adoption.record in exported:
                yield adoption_row(adoption)["body"]
        if implementation is workload is dtype is fingerprint is since is None:
            for body, _ in self._rows(rounds_matching(operator, run, device)):
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
                added = 0
                for part in chunks(scratch):
                    rows = [json.loads(line) for line in part]
                    added += insert_all(database, rows)
                return added

            return self._do(write, writes=True)

    def doctor(self) -> Health:
        """Read everything: the database's own check of its pages, and every record against its checksum.

        A SQLite file with a problem is set aside and what can be read of it goes into a new one; `problems` says so.
        """
        from sqlalchemy import func, select

        records = tables().records
        problems: list[str] = []
        if self._path is not None:
            findings = [
                str(line)
                for (line,) in self._do(
                    lambda database: database.exec_driver_sql("PRAGMA integrity_check(20)").fetchall()
                )
            ]
            problems += [] if findings == ["ok"] else [f"SQLite finds: {line}" for line in findings]
        count, last = self._rows(select(func.count(), func.max(records.c.sequence)))[0]
        wrong = 0
        for start in range(0, (last or 0) + 1, CHUNK):
            statement = select(records.c.body, records.c.sha256).where(
                records.c.sequence > start, records.c.sequence <= start + CHUNK
            )
            wrong += sum(not intact(body, sha256) for body, sha256 in self._rows(statement))
        if wrong:
            problems.append(f"{wrong} of {count} records do not match their checksums")
        if problems and self._path is not None:
            problems += self._replace()
        return Health(schema=SCHEMA, records=int(count), problems=tuple(problems), notices=self.notices)

    def _asked(self, question: str, parameters: Mapping[str, Any]) -> Sequence[Any]:
        from sqlalchemy import text

        return self._do(lambda database: database.execute(text(question), dict(parameters)).fetchall())

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
                result = connection.patiently(once, self.url)
            except Damaged as error:
                raise self._set_aside(error) from error
            # moved away while it was written to: what was acknowledged must be where the next one looks. Adding again
            # is safe
            if not writes or file_identity(self._path) == self._file:
                return result

    def _follow(self) -> None:
        """Go on with the file that the store's name means now: an open one that was removed, or set aside by another
        process, takes
        records that nobody finds."""
        if self._path is None or file_identity(self._path) == self._file:
            return
        self._engine.dispose()
        files.prepare(self._path)
        notices = rebuild(self._path, None) if files.refuse_foreign(self._path) else ()
        connection.make_file(self._engine, self.url)
        self._file = file_identity(self._path)
        self.notices += (*notices, f"The store {self._path} was moved or removed while it was open, and begun again.")

    def _set_aside(self, error: Damaged) -> Damaged:
        return (
            Damaged(f"{error}. {' '.join(self._replace())} Run the command again.") if self._path is not None else error
        )

    def _replace(self) -> tuple[str, ...]:
        """Set the file aside, go on with a new one of what could be read; what to tell a person."""
        assert self._path is not None
        self._engine.dispose()
        self.damaged = True
        notices = rebuild(self._path, self._file)
        connection.make_file(self._engine, self.url)
        self._file = file_identity(self._path)
        self.notices += notices
        return notices


def _execute(statement: Any, values: list[dict[str, Any]], database: Connection) -> None:
    database.execute(statement, values)
