"""Fact: what is asked of a record before it is believed, kept in columns so that a first call reads no bodies."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from opforge.core.definition.implementation import Config
from opforge.core.definition.operator import ScalarValue
from opforge.core.definition.shapes import AxisValue
from opforge.core.evidence.record import Record, from_json, terms_of, to_json
from opforge.core.evidence.timing_terms import CALL
from opforge.core.evidence.verdict import REFUSED, Pass
from opforge.store.timestamps import instant

PASSED = Pass.__name__
REFUSALS = (*(kind.__name__ for kind in REFUSED), "Policy")
"""By name; the last is what a LibraryFallback was called in records from before 2026-11-23."""
CONTIGUOUS = "contiguous"
SEARCHES = "tune-"
"""What the runs of searches begin with: in records from before `trial` (and `code_sha256`) it is the mark of a point
that was tried.
"""


class Fact(NamedTuple):
    """A record without its samples and cases.

    workload       "": a verification, of the operator's cases alone
    versions       of the toolchain that it was found with, by name ("triton", "nvcc", …)
    verdict        the name of its kind: "Pass", "Mismatch", …
    median_s       seconds, with the 95 % interval low_s to high_s; None where nothing was timed
    cache          "warm" or "cold"; "" where nothing was timed
    suspect        the time cannot be true
    steady         the samples are of one speed that does not move (core.evidence.timing.Timing.unsteady)
    trial          a point of a search (core.evidence.record.Record.trial)
    layout         how the inputs lay in memory
    terms          what is in its time beside the computation (core.evidence.timing_terms); "" where nothing was timed
    launch_s       what the host spends to start a call as a caller makes it; None where that is in the time, or was not
                   asked: with `out=` given a call goes another way
    """

    id: str
    created_at: str
    operator: str
    implementation: str
    backend: str
    workload: str
    dtype: str
    device: str
    config: Config
    axes: Mapping[str, AxisValue]
    scalars: Mapping[str, ScalarValue]
    source_sha256: str
    code_sha256: str
    versions: Mapping[str, str]
    verdict: str
    median_s: float | None
    low_s: float | None
    high_s: float | None
    cache: str
    suspect: bool
    steady: bool
    trial: bool
    layout: str = CONTIGUOUS
    terms: str = ""
    launch_s: float | None = None

    @property
    def refused(self) -> bool:
        """Whether it says that the kernel is wrong, or breaks a rule."""
        return self.verdict in REFUSALS


class Adopted(NamedTuple):
    """Of an Adoption what is asked of it: the record's id, and the source that it speaks of as well."""

    record: str
    source_sha256: str


TEXTS = ("config", "axes", "scalars", "versions")
"""The fields that stand in their columns as JSON."""


def fact_of(record: Record) -> Fact:
    """The Fact of a record."""
    timing = record.timing
    low_s, high_s = timing.interval_s if timing is not None else (None, None)
    return Fact(
        id=record.id,
        created_at=instant(record.created_at),
        operator=record.operator,
        implementation=record.implementation,
        backend=record.backend,
        workload=record.workload,
        dtype=record.dtype,
        device=record.device,
        config=record.config,
        axes=record.axes,
        scalars=record.scalars,
        source_sha256=record.source_sha256,
        code_sha256=record.code_sha256,
        versions={
            name.removeprefix("version."): value
            for name, value in record.environment.facts.items()
            if name.startswith("version.")
        },
        verdict=type(record.verdict).__name__,
        median_s=timing.median_s if timing is not None else None,
        low_s=low_s,
        high_s=high_s,
        cache=timing.cache if timing is not None else "",
        suspect=timing is not None and timing.suspect is not None,
        steady=timing is not None and not timing.unsteady,
        trial=record.trial or (not record.code_sha256 and record.run.startswith(SEARCHES)),
        layout=record.layout,
        terms=terms_of(record),
        launch_s=timing.launch_s if timing is not None and terms_of(record) == CALL else None,
    )


def columns_of(fact: Fact) -> dict[str, Any]:
    """A Fact by the names of its columns."""
    return {name: _text(value) if name in TEXTS else value for name, value in fact._asdict().items()}


def fact_from(row: tuple[Any, ...]) -> Fact:
    """The Fact of a row of its columns, in the order of its fields."""
    fields = list(row[: len(Fact._fields)])
    for place in _PLACES:
        fields[place] = _read(fields[place])
    for place in _FLAGS:
        # SQLite has numbers for them
        fields[place] = bool(fields[place])
    # rows from before schema 4: nothing else was timed then
    fields[_LAYOUT] = fields[_LAYOUT] or CONTIGUOUS
    fields[_TERMS] = fields[_TERMS] or ""
    return Fact(*fields)


def newest_alike(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Of rows, newest first, the first of those that differ in nothing but their ids, moments and seconds: whatever is
    decided of the older ones is
    decided of the newest, so they need not be read (store.belief)."""
    newest: dict[Any, tuple[Any, ...]] = {}
    for row in rows:
        newest.setdefault((_ALIKE(row), row[_MEDIAN] is None), row)
    return list(newest.values())


_MEDIAN = Fact._fields.index("median_s")
_TERMS = Fact._fields.index("terms")
_ALIKE = operator.itemgetter(
    *(
        place
        for place, name in enumerate(Fact._fields)
        if name not in ("id", "created_at", "median_s", "low_s", "high_s", "launch_s")
    )
)
_LAYOUT = Fact._fields.index("layout")
_PLACES = tuple(Fact._fields.index(name) for name in TEXTS)
_FLAGS = tuple(Fact._fields.index(name) for name in ("suspect", "steady", "trial"))


def _text(value: Any) -> str:
    return json.dumps(to_json(value), separators=(",", ":"), sort_keys=True)


@functools.lru_cache(maxsize=4096)
def _read(text: str) -> Any:
    """What a column says. Many rows say the same: each text is read once."""
    return from_json(json.loads(text))
