"""What the store answers besides records."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Point:
    """One entry of a history, without the body of its record: when, how long, and what the verdict was.

    median_s   seconds; None where nothing was timed
    """

    id: str
    created_at: str
    run: str
    verdict: str
    median_s: float | None


@dataclass(frozen=True, kw_only=True)
class Health:
    """What a look at the whole store found. `problems` is empty when it is sound; `notices` are warnings with what to do."""

    schema: int
    records: int
    problems: tuple[str, ...]
    notices: tuple[str, ...]

    def __str__(self) -> str:
        words = [f"{self.records} {'record' if self.records == 1 else 'records'}", *(self.problems or ("sound",)), *self.notices]
        return "; ".join(words)
