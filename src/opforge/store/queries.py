"""The SELECTs of the store, as SQLAlchemy statements (store/records.py runs them). Each takes plain values and gives
a statement."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

from opforge.core.errors import UsageError
from opforge.store.evidence_facts import PASSED, REFUSALS, Fact
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


def fact_columns() -> tuple[Any, ...]:
    """The columns of a Fact, by its fields' names."""
    column = tables().records.c
    return tuple(column[name] for name in Fact._fields)


def facts(operator: str, device: str, sources: Collection[str], codes: Collection[str]) -> Any:
    """The columns of the Facts of one operator on one device that may be evidence, and their sequence, in no order: of
    these sources or codes, or adopted for these sources; failures and what passed, but not the points of a search that
    passed, which are nobody's. Rows from before
    schema 3, whose source is not known, are given too."""
    from sqlalchemy import and_, or_, select, union

    column = tables().records.c
    theirs = select(column.sequence).where(column.operator == operator, column.device == device)
    # each part by an index of its own: of one condition with OR, SQLite reads the operator's whole history
    of_now = [theirs.where(column.source_sha256.in_(sources)), theirs.where(column.source_sha256.is_(None))]
    of_now += [theirs.where(column.code_sha256.in_(codes))] if codes else []
    mark = tables().adoptions.c
    of_adopted = (
        select(column.sequence).join(tables().adoptions, mark.record == column.id).where(column.device == device)
    )
    of_now.append(of_adopted.where(mark.operator == operator, mark.source_sha256.in_(sources)))
    told = or_(
        and_(column.verdict == PASSED, or_(column.trial.is_(None), column.trial.is_(False))),
        column.verdict.in_(REFUSALS),
    )
    return select(*fact_columns(), column.sequence).where(column.sequence.in_(union(*of_now)), told)


def adopted(operator: str, sources: Collection[str]) -> Any:
    """(record, source) of an operator's adoptions for these sources."""
    from sqlalchemy import select

    column = tables().adoptions.c
    return select(column.record, column.source_sha256).where(
        column.operator == operator, column.source_sha256.in_(sources)
    )


def codes_of_others(operator: str, device: str, sources: Collection[str]) -> Any:
    """(implementation, code) of the records of other sources than these that say their code."""
    from sqlalchemy import select

    column = tables().records.c
    of_others = (
        column.operator == operator,
        column.device == device,
        column.code_sha256 != "",
        column.source_sha256.not_in(sources),
    )
    return select(column.implementation, column.code_sha256).distinct().where(*of_others)


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
