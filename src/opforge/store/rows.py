"""A record as a row of a table and back; files of JSON lines are store/jsonl.py. Everything that enters or
leaves the store passes here and is checked."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from opforge.core.evidence.optimization import OptimizationRound
from opforge.core.evidence.record import Adoption, Record, from_json, to_json
from opforge.core.evidence.verdict import may_be_timed
from opforge.core.language.errors import OpforgeError, UsageError
from opforge.store.evidence_facts import columns_of, fact_of
from opforge.store.query_results import HistoryEntry
from opforge.store.timestamps import instant

ID = re.compile(r"[0-9a-f]{8}[0-9a-f-]{0,28}")

RowValues = dict[str, Any]


class Damaged(OpforgeError):
    """What was read is not what was written."""


def row_of(record: Record) -> RowValues:
    """The row for a record. Raises UsageError for one that the store must not hold: a malformed id or time, no samples,
    or a time without a Pass."""
    if not ID.fullmatch(record.id):
        raise UsageError(
            f"Record id {record.id!r:.60} is not 8 to 36 hexadecimal digits and dashes. Make one with uuid.uuid4().hex."
        )
    timing = record.timing
    if timing is not None:
        if not may_be_timed(record.verdict, record.backend):
            raise UsageError(
                f"Record {record.id} has a time without a Pass (its verdict is {type(record.verdict).__name__}). "
                "Verify first; only what passes is timed."
            )
        if not timing.samples_s or not all(_duration(sample) for sample in timing.samples_s):
            raise UsageError(
                f"Record {record.id} has a timing with no samples, or samples that are not finite. Time it again, or "
                "leave the timing out."
            )
    body = json.dumps(to_json(record), separators=(",", ":"), sort_keys=True)
    try:
        row = {**columns_of(fact_of(record)), **vars(point_of(record)), "sha256": digest(body), "body": body}
    except (ArithmeticError, ValueError, TypeError) as error:
        raise UsageError(
            f"Record {record.id} holds numbers that no statistic can be made of ({error}). Time it again, or leave "
            "the timing out."
        ) from error
    for name in ("operator", "implementation", "workload", "dtype", "device", "run", "revision"):
        if not _storable(str(row[name])):
            raise UsageError(
                f"Record {record.id}: {name} {row[name]!r:.60} holds characters that no database takes. Write it in "
                "plain text."
            )
    return row


def point_of(record: Record) -> HistoryEntry:
    """What a history needs of a record."""
    timing = record.timing
    low_s, high_s = timing.interval_s if timing is not None else (None, None)
    return HistoryEntry(
        id=record.id,
        created_at=instant(record.created_at),
        run=record.run,
        operator=record.operator,
        implementation=record.implementation,
        workload=record.workload,
        dtype=record.dtype,
        device=record.device,
        fingerprint=record.environment.fingerprint,
        verdict=type(record.verdict).__name__,
        median_s=timing.median_s if timing is not None else None,
        low_s=low_s,
        high_s=high_s,
        revision=record.environment.facts.get("git.commit", ""),
        suspect=timing is not None and timing.suspect is not None,
    )


def record_of(body: str, sha256: str) -> Record:
    """The record of a row. Raises Damaged when the body is not what was written, UsageError when it is no Record."""
    if digest(body) != sha256:
        raise Damaged(
            "A record does not match its checksum; it was damaged on disk. Set the store aside and keep the others "
            "with: opforge doctor"
        )
    return parse(body)


def parse(line: str) -> Record:
    """The Record that a line of JSON holds. Nothing in it is executed. Raises UsageError."""
    return _record(noun_of(line))


def _record(noun: Any) -> Record:
    if not isinstance(noun, Record):
        raise UsageError(
            f"This is a {type(noun).__name__}, not a Record. Write such lines with: opforge records export FILE"
        )
    return noun


def noun_of(line: str) -> Any:
    """What a line of JSON holds. Nothing in it is executed. Raises UsageError."""
    try:
        return from_json(json.loads(line))
    except UsageError:
        raise
    except (ValueError, RecursionError, TypeError, OverflowError, AttributeError) as error:
        # foreign data can make the nouns' own checks stumble: whatever it is, it is not a Record
        raise UsageError(
            f"This is not a record in JSON: {error}. Write such lines with: opforge records export FILE"
        ) from error


def adoption_of(body: str) -> Adoption:
    """The Adoption that a line of JSON holds. Raises UsageError."""
    noun = noun_of(body)
    if not isinstance(noun, Adoption):
        raise UsageError(
            f"This is a {type(noun).__name__}, not an Adoption. Write such lines with: opforge records adopt FILE"
        )
    return noun


def adoption_row(adoption: Adoption) -> RowValues:
    """The row for an Adoption. Raises UsageError for a malformed one."""
    if not ID.fullmatch(adoption.id) or not ID.fullmatch(adoption.record):
        raise UsageError(
            f"Adoption {adoption.id!r:.60} of {adoption.record!r:.60}: ids are 8 to 36 hexadecimal digits and "
            "dashes. Make one with uuid.uuid4().hex."
        )
    instant(adoption.created_at)
    if not all(map(_storable, (adoption.operator, adoption.source_sha256, adoption.code_sha256, adoption.how))):
        raise UsageError(f"Adoption {adoption.id} holds characters that no database takes. Write it in plain text.")
    body = json.dumps(to_json(adoption), separators=(",", ":"), sort_keys=True)
    return {
        "id": adoption.id,
        "record": adoption.record,
        "operator": adoption.operator,
        "source_sha256": adoption.source_sha256,
        "body": body,
    }


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


def read_rows(lines: Iterable[str]) -> Iterator[RowValues]:
    """Rows for JSON lines, empty ones skipped: of records, of rounds, which alone have a `number`, and of adoptions,
    which have no `sha256`. Raises UsageError that names the line.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            noun = noun_of(line)
            if isinstance(noun, OptimizationRound):
                yield round_row(noun)
            else:
                yield adoption_row(noun) if isinstance(noun, Adoption) else row_of(_record(noun))
        except UsageError as error:
            raise UsageError(f"Line {number}: {str(error).removesuffix('.')}. Nothing was imported.") from error


def read_lines(lines: Iterable[str]) -> Iterator[Record]:
    """Records of JSON lines, without a store; all else is passed over. Raises UsageError that names the line."""
    yield from (noun for noun in read_nouns(lines) if isinstance(noun, Record))


def read_nouns(lines: Iterable[str]) -> Iterator[Record | Adoption]:
    """Records and adoptions of JSON lines, without a store; rounds are passed over. Raises UsageError that names the
    line.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            noun = noun_of(line)
            if isinstance(noun, OptimizationRound):
                round_row(noun)
                continue
            if isinstance(noun, Adoption):
                adoption_row(noun)
            else:
                row_of(_record(noun))
        except UsageError as error:
            raise UsageError(f"Line {number}: {error}") from error
        yield noun


def intact(body: str, sha256: str) -> bool:
    """Whether a row holds the record that was written."""
    try:
        record_of(body, sha256)
    except (Damaged, UsageError):
        return False
    return True


def digest(body: str) -> str:
    """SHA-256 of a body, in hex."""
    return hashlib.sha256(body.encode()).hexdigest()


def _duration(value: float) -> bool:
    """Whether a sample can be a number of seconds. Foreign JSON may hold an integer that no float can."""
    try:
        return math.isfinite(value) and value >= 0
    except OverflowError:
        return False


def _storable(text: str) -> bool:
    """Neither NUL, which PostgreSQL refuses, nor half a surrogate pair, which has no UTF-8."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)
