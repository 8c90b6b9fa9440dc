"""What a first call asks of a store: the facts of one operator that may be evidence.

The questions are plain SQL that SQLite and PostgreSQL both understand, so that a call which only wants to know reads
the file with Python's own sqlite3: importing SQLAlchemy takes longer than reading.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from opforge.store import deferred_writes, files
from opforge.store.belief import Installation
from opforge.store.evidence_facts import PASSED, REFUSALS, Adopted, Fact, fact_from, newest_alike
from opforge.store.schema import APPLICATION, SCHEMA

Ask = Callable[[str, Mapping[str, Any]], Sequence[Sequence[Any]]]
"""Answers a question with its parameters, which stand in it by name (`:operator`), in rows."""

WAIT_S = 0.2
"""For a lock on the file. `Store` waits longer, and says who holds it."""


class Unfilled(Exception):
    """Rows of an earlier schema, by their ids, whose columns have to be filled from their bodies first."""

    def __init__(self, identities: Sequence[str]) -> None:
        super().__init__(f"{len(identities)} rows are of an earlier schema")
        self.identities = identities


def facts(ask: Ask, operator: str, here: Installation) -> tuple[list[Fact], list[Adopted]]:
    """What may be evidence of an operator's implementations as they are here, oldest first, and what was adopted for
    them. Of facts that differ in their ids, moments and seconds alone the newest is given. No body is read. Raises
    Unfilled.
    """
    place = {"operator": operator, "device": here.device}
    sources, codes = _of_now(ask(_CODES, place), here)
    of_now = {**place, **_named("source", sources), **_named("code", codes)}
    rows = [tuple(row) for row in ask(_facts(len(sources), len(codes)), of_now)]
    unknown = [row[_ID] for row in rows if row[_SOURCE] is None or (row[_TERMS] is None and row[_MEDIAN] is not None)]
    if unknown:
        raise Unfilled(unknown)
    newest_first = sorted(rows, key=_moment, reverse=True)
    adopted = ask(_adopted(len(sources)), {"operator": operator, **_named("source", sources)})
    return [fact_from(row) for row in reversed(newest_alike(newest_first))], [Adopted(*row) for row in adopted]


def facts_in_file(
    path: Path, operator: str, places: Sequence[Installation]
) -> list[tuple[list[Fact], list[Adopted]]] | None:
    """The `facts` for each place from a SQLite store. Nothing is written, but for the empty file where there is none.

    None where only `Store` can answer, or say what is wrong: the file is of another schema or another program, damaged,
    or locked, or records wait beside it. Raises EnvironmentLacks where none can be made.
    """
    path = path.expanduser().absolute()
    try:
        size = path.stat().st_size
    except OSError:
        files.prepare(path)
        size = 0
    if deferred_writes.place_of(path).exists():
        return None
    if size == 0:
        return [([], []) for _ in places]
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=WAIT_S)) as database:
            kind = [database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
            if kind != [APPLICATION, SCHEMA]:
                return None

            def ask(question: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
                return database.execute(question, dict(parameters)).fetchall()

            database.execute("BEGIN")
            return [facts(ask, operator, place) for place in places]
    except (OSError, sqlite3.Error, Unfilled):
        return None


def _of_now(rows: Collection[Sequence[Any]], here: Installation) -> tuple[list[str], list[str]]:
    """The sources that are here, and those that say the same to the compiler; and their codes, as far as they were
    recorded of other sources. What the code of a source is that was recorded itself is known by that; making the hash
    of another takes 10 to 40 ms a file.
    """
    said = {(name, code) for name, source, code in rows if here.sources.get(name) == source}
    known = {name for name, _ in said}
    others = {(name, code) for name, source, code in rows if name in here.sources and here.sources[name] != source}
    same = {
        (name, code) for name, code in others if ((name, code) in said if name in known else here.code_of(name) == code)
    }
    alike = {source for name, source, code in rows if (name, code) in same}
    return sorted(alike.union(here.sources.values())), sorted({code for _, code in same})


_PLACES = {name: place for place, name in enumerate(Fact._fields)}
_ID, _CREATED, _MEDIAN, _SOURCE, _TERMS = (
    _PLACES[name] for name in ("id", "created_at", "median_s", "source_sha256", "terms")
)


def _moment(row: tuple[Any, ...]) -> tuple[str, int]:
    """When a row's fact was found; of one moment the one that was given last is the newer."""
    return row[_CREATED], row[-1]


_OF_OPERATOR = "records.operator = :operator AND records.device = :device"
_CODES = f"""
    SELECT DISTINCT records.implementation, records.source_sha256, records.code_sha256 FROM records
    WHERE {_OF_OPERATOR} AND records.code_sha256 <> ''
"""
"""What each source's code is, as far as the records of an operator on a device say it."""


def _facts(sources: int, codes: int) -> str:
    """The columns of the Facts of one operator on one device that may be evidence, and their sequence, in no order: of
    these sources or codes, or adopted for these sources; failures and what passed, but not the points of a search that
    passed, which are nobody's. Rows from before schema 3, whose source is not known, are given too.
    """
    theirs = f"SELECT records.sequence FROM records WHERE {_OF_OPERATOR}"
    marked = (
        "SELECT records.sequence FROM records JOIN adoptions ON adoptions.record = records.id WHERE "
        "records.device = :device AND adoptions.operator = :operator "
        f"AND adoptions.source_sha256 IN {_in('source', sources)}"
    )
    # each part by an index of its own: of one condition with OR, SQLite reads the operator's whole history
    parts = [
        f"{theirs} AND records.source_sha256 IN {_in('source', sources)}",
        f"{theirs} AND records.source_sha256 IS NULL",
        *([f"{theirs} AND records.code_sha256 IN {_in('code', codes)}"] if codes else []),
        marked,
    ]
    refusals = ", ".join(f"'{name}'" for name in REFUSALS)
    return (
        f"SELECT {', '.join(f'records.{name}' for name in Fact._fields)}, records.sequence FROM records "
        f"WHERE records.sequence IN ({' UNION '.join(parts)}) AND ((records.verdict = '{PASSED}' "
        f"AND (records.trial IS NULL OR NOT records.trial)) OR records.verdict IN ({refusals}))"
    )


def _adopted(sources: int) -> str:
    """(record, source) of an operator's adoptions for these sources."""
    return (
        "SELECT adoptions.record, adoptions.source_sha256 FROM adoptions WHERE adoptions.operator = :operator "
        f"AND adoptions.source_sha256 IN {_in('source', sources)}"
    )


def _in(name: str, count: int) -> str:
    return f"({', '.join(f':{name}_{place}' for place in range(count))})"


def _named(name: str, values: Sequence[str]) -> dict[str, str]:
    return {f"{name}_{place}": value for place, value in enumerate(values)}
