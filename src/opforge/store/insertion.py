"""New rows in the tables of a store: what is there already is passed over, and nothing is changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from opforge.core.evidence.record import Adoption
from opforge.core.language.errors import UsageError
from opforge.store.rows import RowValues, adoption_row
from opforge.store.schema import tables

if TYPE_CHECKING:
    from sqlalchemy import Connection

T = TypeVar("T")
CHUNK = 500
"""Rows that one statement asks for or inserts: SQLite before 3.32 takes at most 999 parameters."""


def insert(database: Connection, rows: Sequence[RowValues]) -> int:
    """Insert the rows whose ids are new; how many. Raises UsageError for an id that another fact has."""
    import sqlalchemy
    from sqlalchemy.exc import IntegrityError

    records = tables().records
    added = 0
    for part in chunks(rows):
        asked = sqlalchemy.select(records.c.id, records.c.sha256).where(records.c.id.in_([row["id"] for row in part]))
        known: dict[str, str] = dict(map(tuple, database.execute(asked)))
        fresh: list[RowValues] = []
        for row in part:
            if row["id"] not in known:
                known[row["id"]] = row["sha256"]
                fresh.append(row)
            elif known[row["id"]] != row["sha256"]:
                raise UsageError(
                    f"Record {row['id']} is in the store already and says something else. Records are never changed: "
                    "give the new fact an id of its own."
                )
        if fresh:
            try:
                database.execute(sqlalchemy.insert(records), fresh)
            except IntegrityError as error:
                # on a server another writer may have been quicker between the question and the insertion
                raise UsageError(
                    f"A record of the same id was added by another process at the same time ({error.orig}). Run the "
                    "command again."
                ) from error
        added += len(fresh)
    return added


def adopt(database: Connection, adoptions: Sequence[Adoption]) -> int:
    """Insert those that say something new: of a record and a source one is enough."""
    import sqlalchemy

    table = tables().adoptions
    rows = [adoption_row(adoption) for adoption in adoptions]
    asked = sqlalchemy.select(table.c.record, table.c.source_sha256, table.c.id).where(
        table.c.operator.in_({row["operator"] for row in rows})
    )
    known = set(map(tuple, database.execute(asked)))
    ids, pairs = {identity for *_, identity in known}, {(record, source) for record, source, _ in known}
    fresh = {
        (row["record"], row["source_sha256"]): row
        for row in rows
        if row["id"] not in ids and (row["record"], row["source_sha256"]) not in pairs
    }
    if fresh:
        database.execute(sqlalchemy.insert(table), list(fresh.values()))
    return len(fresh)


def chunks(items: Iterable[T]) -> Iterator[list[T]]:
    """The items in lists of at most CHUNK."""
    iterator = iter(items)
    while part := list(islice(iterator, CHUNK)):
        yield part
