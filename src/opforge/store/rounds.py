"""Rounds of optimisations in the store: kept beside the records, found again by operator and run, never changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opforge.core.language.errors import UsageError
from opforge.store.insertion import adopt, insert
from opforge.store.rows import RowValues, adoption_of
from opforge.store.schema import tables

if TYPE_CHECKING:
    from sqlalchemy import Connection


def insert_rounds(database: Connection, rows: Sequence[RowValues]) -> int:
    """Insert the rounds whose ids are new; how many. Raises UsageError for an id that says something else."""
    import sqlalchemy

    table = tables().rounds
    asked = sqlalchemy.select(table.c.id, table.c.sha256).where(table.c.id.in_([row["id"] for row in rows]))
    known: dict[str, str] = dict(map(tuple, database.execute(asked)))
    for row in rows:
        if known.get(row["id"], row["sha256"]) != row["sha256"]:
            raise UsageError(f"Round {row['id']} is in the store already and says something else. Give it a new id.")
    fresh = [row for row in rows if row["id"] not in known]
    if fresh:
        database.execute(sqlalchemy.insert(table), fresh)
    return len(fresh)


def insert_all(database: Connection, rows: Sequence[RowValues]) -> int:
    """Insert what rows.read_rows gave: records, rounds and adoptions; how many of the first two were new."""
    added = insert(database, [row for row in rows if "sha256" in row and "number" not in row])
    added += insert_rounds(database, [row for row in rows if "number" in row])
    adopt(database, [adoption_of(row["body"]) for row in rows if "sha256" not in row])
    return added


def rounds_matching(operator: str | None, run: str | None, device: str | None) -> Any:
    """The bodies and checksums of rounds, oldest first."""
    import sqlalchemy

    table = tables().rounds
    statement = sqlalchemy.select(table.c.body, table.c.sha256).order_by(table.c.sequence)
    for column, wanted in ((table.c.operator, operator), (table.c.run, run), (table.c.device, device)):
        if wanted is not None:
            statement = statement.where(column == wanted)
    return statement
