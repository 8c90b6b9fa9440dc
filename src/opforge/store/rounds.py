"""Rounds of optimisations in the store: kept beside the records, found again by operator and run, never changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opforge.core.errors import UsageError
from opforge.core.optimization import OptimizationRound
from opforge.core.record import to_json
from opforge.store.rows import ID, RowValues, digest, noun_of
from opforge.store.schema import tables
from opforge.store.timestamps import instant

if TYPE_CHECKING:
    from sqlalchemy import Connection


def round_row(kept: OptimizationRound) -> RowValues:
    """The row of a round. Raises UsageError for a malformed id or time."""
    if not ID.fullmatch(kept.id):
        raise UsageError(
            f"Round {kept.id!r:.60} is not 8 to 36 hexadecimal digits and dashes. Make one with uuid.uuid4().hex."
        )
    body = json.dumps(to_json(kept), separators=(",", ":"), sort_keys=True)
    return {
        "id": kept.id,
        "created_at": instant(kept.created_at),
        "run": kept.run,
        "operator": kept.operator,
        "implementation": kept.implementation,
        "device": kept.device,
        "number": kept.number,
        "body": body,
        "sha256": digest(body),
    }


def round_of(body: str, sha256: str = "") -> OptimizationRound:
    """The round that a row holds. Raises UsageError for what is none, or is not what was written."""
    if sha256 and digest(body) != sha256:
        raise UsageError("A round does not match its checksum; it was damaged on disk. Look with: opforge doctor")
    noun = noun_of(body)
    if not isinstance(noun, OptimizationRound):
        raise UsageError(f"This is a {type(noun).__name__}, not a round of an optimisation.")
    return noun


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


def rounds_matching(operator: str | None, run: str | None, device: str | None) -> Any:
    """The bodies and checksums of rounds, oldest first."""
    import sqlalchemy

    table = tables().rounds
    statement = sqlalchemy.select(table.c.body, table.c.sha256).order_by(table.c.sequence)
    for column, wanted in ((table.c.operator, operator), (table.c.run, run), (table.c.device, device)):
        if wanted is not None:
            statement = statement.where(column == wanted)
    return statement
