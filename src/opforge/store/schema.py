"""The tables of the store, and their columns. A record is one row: what is searched for in columns, the whole fact as
JSON in `body`."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

SCHEMA = 7
"""Raised with every change that an older opforge could not read."""

ADDED = {
    2: ("low_s", "high_s", "revision", "suspect"),
    3: ("backend", "config", "axes", "scalars", "source_sha256", "code_sha256", "versions", "cache", "steady", "trial"),
    4: ("layout",),
    5: ("terms",),
    6: (),
    7: ("launch_s",),
}
"""The columns of records that a schema brought. In rows from before they are null, and what they would hold is in the
body. Schema 6 brought the table of rounds."""

APPLICATION = 0x6F70_6667
"""SQLite's application_id ("opfg"): tells a store from any other SQLite file."""


@dataclass(frozen=True)
class Tables:
    """SQLAlchemy's tables: records, adoptions of records, rounds of optimisations, and meta (key, value)."""

    metadata: Any
    records: Any
    adoptions: Any
    rounds: Any
    meta: Any


@functools.cache
def tables() -> Tables:
    """The tables, built at first use: SQLAlchemy is imported here and not with this module.

    records   sequence (order of arrival), the columns that are searched, those of a history (`median_s`, its interval
              `low_s` to `high_s`, `revision`, `suspect`, `verdict`) so that none reads a body, `created_at` in UTC with
              a fixed width so that text order is time order, `body` (JSON text) and `sha256` of it; and those of a Fact
    adoptions  of records for other sources: `body` is the Adoption as JSON
    rounds     of optimisations: `body` is the OptimizationRound as JSON
    """
    from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, MetaData, String, Table, Text, text

    metadata = MetaData()
    records = Table(
        "records",
        metadata,
        Column("sequence", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
        Column("id", _bytewise(36), nullable=False, unique=True),
        Column("created_at", _bytewise(32), nullable=False),
        Column("operator", Text, nullable=False),
        Column("implementation", Text, nullable=False),
        Column("workload", Text, nullable=False),
        Column("dtype", Text, nullable=False),
        Column("device", Text, nullable=False),
        Column("fingerprint", String(12), nullable=False),
        Column("run", Text, nullable=False),
        Column("verdict", Text, nullable=False),
        Column("median_s", Float, nullable=True),
        Column("low_s", Float, nullable=True),
        Column("high_s", Float, nullable=True),
        Column("revision", Text, nullable=True),
        Column("suspect", Boolean, nullable=True),
        Column("backend", Text, nullable=True),
        Column("config", Text, nullable=True),
        Column("axes", Text, nullable=True),
        Column("scalars", Text, nullable=True),
        Column("source_sha256", String(64), nullable=True),
        Column("code_sha256", String(64), nullable=True),
        Column("versions", Text, nullable=True),
        Column("cache", Text, nullable=True),
        Column("steady", Boolean, nullable=True),
        Column("trial", Boolean, nullable=True),
        Column("layout", Text, nullable=True),
        Column("terms", Text, nullable=True),
        Column("launch_s", Float, nullable=True),
        Column("sha256", String(64), nullable=False),
        Column("body", Text, nullable=False),
        sqlite_autoincrement=True,
    )
    column = records.c
    Index(
        "records_history",
        column.operator,
        column.implementation,
        column.workload,
        column.dtype,
        column.fingerprint,
        column.created_at,
    )
    Index("records_operator", column.operator, column.created_at)
    Index("records_time", column.created_at)
    Index("records_run_operator", column.run, column.operator, column.created_at)
    Index(
        "records_passes",
        column.operator,
        column.device,
        column.dtype,
        column.implementation,
        column.workload,
        column.fingerprint,
        column.created_at,
    )
    Index("records_source", column.operator, column.device, column.source_sha256, column.code_sha256)
    Index(
        "records_codes", column.operator, column.device, column.code_sha256, column.implementation, column.source_sha256
    )
    timed = text("median_s IS NOT NULL")
    Index("records_timed", column.created_at, sqlite_where=timed, postgresql_where=timed)
    adoptions = Table(
        "adoptions",
        metadata,
        Column("sequence", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
        Column("id", _bytewise(36), nullable=False, unique=True),
        Column("record", _bytewise(36), nullable=False),
        Column("operator", Text, nullable=False),
        Column("source_sha256", String(64), nullable=False),
        Column("body", Text, nullable=False),
        sqlite_autoincrement=True,
    )
    Index("adoptions_operator", adoptions.c.operator)
    rounds = Table(
        "rounds",
        metadata,
        Column("sequence", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
        Column("id", _bytewise(36), nullable=False, unique=True),
        Column("created_at", _bytewise(32), nullable=False),
        Column("run", Text, nullable=False),
        Column("operator", Text, nullable=False),
        Column("implementation", Text, nullable=False),
        Column("device", Text, nullable=False),
        Column("number", Integer, nullable=False),
        Column("sha256", String(64), nullable=False),
        Column("body", Text, nullable=False),
        sqlite_autoincrement=True,
    )
    Index("rounds_run", rounds.c.operator, rounds.c.run)
    meta = Table("meta", metadata, Column("key", String(64), primary_key=True), Column("value", Text, nullable=False))
    return Tables(metadata, records, adoptions, rounds, meta)


def _bytewise(length: int) -> Any:
    """Text that is ordered by its bytes: a server's language may pass over dashes and colons when it sorts."""
    from sqlalchemy import String

    return String(length).with_variant(String(length, collation="C"), "postgresql")
