"""The SELECTs of the store, as SQLAlchemy statements (store/records.py runs them). Each takes plain values and gives
a statement."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from opforge.core.language.errors import UsageError
from opforge.store.query_results import HistoryEntry
from opforge.store.schema import tables
from opforge.store.timestamps import instant

COLUMNS = ("operator", "implementation", "workload", "dtype", "device", "fingerprint", "run")


def point_columns() -> tuple[Any, ...]:
    """The columns of a HistoryEntry, by its fields' names."""
    column = tables().records.c
    return tuple(column[field.name] for field in dataclasses.fields(HistoryEntry))


def matching(columns: Sequence[Any], filters: dict[str, str | None], since: str | None, limit: int | None) -> Any:
    """Rows whose columns equal the filters that are not None, not before `since`, newest first, at most `limit`."""
    from sqlalchemy import select

    column = tables().records.c
    statement = select(*columns)
    for name, value in filters.items():
        if value is not None:
            statement = statement.where(column[name] == value)
    if since is not None:
        statement = statement.where(column.created_at >= instant(since))
    if limit is not None:
        if limit < 1:
            raise UsageError(f"limit is {limit}; ask for at least 1 record, or leave it out for all.")
        statement = statement.limit(limit)
    return statement.order_by(column.created_at.desc(), column.sequence.desc())


def adoptions(operator: str | None = None) -> Any:
    """The bodies of the adoptions of an operator's records, or of all."""
    from sqlalchemy import select

    column = tables().adoptions.c
    statement = select(column.body).order_by(column.sequence)
    return statement if operator is None else statement.where(column.operator == operator)


def with_prefix(prefix: str) -> Any:
    """(id, body, sha256) of the records whose id begins so; at most five."""
    from sqlalchemy import select

    column = tables().records.c
    # "g" follows every character an id may have, so the index on id answers
    return (
        select(column.id, column.body, column.sha256)
        .where(column.id >= prefix, column.id < prefix + "g")
        .order_by(column.id)
        .limit(5)
    )
