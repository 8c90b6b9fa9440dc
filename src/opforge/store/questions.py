"""The SELECTs. Each takes plain values and gives a statement; none runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from opforge.core.errors import UsageError
from opforge.core.verdict import REFUSED, Pass
from opforge.store.answers import Point
from opforge.store.rows import instant
from opforge.store.schema import tables

COLUMNS = ("operator", "implementation", "workload", "dtype", "device", "fingerprint", "run")
PASS = Pass.__name__
FAILED = tuple(failure.__name__ for failure in REFUSED)


def point_columns() -> tuple[Any, ...]:
    """The columns of a Point, by its fields' names."""
    column = tables().records.c
    return tuple(column[field.name] for field in dataclasses.fields(Point))


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


def newest_passes(operator: str, device: str, dtype: str, workload: str | None, fingerprint: str | None) -> Any:
    """(implementation, created_at, sequence, body, sha256) of the newest record of each implementation × workload ×
    fingerprint where that is a Pass, newest first."""
    from sqlalchemy import func, select

    records = tables().records
    column = records.c
    place = func.row_number().over(partition_by=(column.implementation, column.workload, column.fingerprint), order_by=(column.created_at.desc(), column.sequence.desc()))
    ranked = select(column.sequence, place.label("place")).where(column.operator == operator, column.device == device, column.dtype == dtype)
    if workload is not None:
        ranked = ranked.where(column.workload == workload)
    if fingerprint is not None:
        ranked = ranked.where(column.fingerprint == fingerprint)
    newest = ranked.subquery()
    return (
        select(column.implementation, column.created_at, column.sequence, column.body, column.sha256)
        .join(newest, newest.c.sequence == column.sequence)
        .where(newest.c.place == 1, column.verdict == PASS)
        .order_by(column.created_at.desc(), column.sequence.desc())
    )


def newest_failures(operator: str, device: str, dtype: str) -> Any:
    """(implementation, created_at) of the newest failure of each implementation in a verification of its cases (no workload)."""
    from sqlalchemy import func, select

    column = tables().records.c
    return (
        select(column.implementation, func.max(column.created_at))
        .where(column.operator == operator, column.device == device, column.dtype == dtype, column.workload == "", column.verdict.in_(FAILED))
        .group_by(column.implementation)
    )


def with_prefix(prefix: str) -> Any:
    """(id, body, sha256) of the records whose id begins so; at most five."""
    from sqlalchemy import select

    column = tables().records.c
    # "g" follows every character an id may have, so the index on id answers
    return select(column.id, column.body, column.sha256).where(column.id >= prefix, column.id < prefix + "g").order_by(column.id).limit(5)
