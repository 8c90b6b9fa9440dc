"""What the store answers besides records: entries of a history, and its own health."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class HistoryEntry:
    """One entry of a history, without the body of its record: what about, when, how long, and what the verdict was.

    median_s        seconds; None where nothing was timed
    low_s, high_s   the 95 % interval of the median, seconds; None where nothing was timed
    revision        the git commit of the operator's folder; "" where it is not known
    suspect         the time cannot be true
    """

    id: str
    created_at: str
    run: str
    operator: str
    implementation: str
    workload: str
    dtype: str
    device: str
    fingerprint: str
    verdict: str
    median_s: float | None
    low_s: float | None
    high_s: float | None
    revision: str
    suspect: bool


@dataclass(frozen=True, kw_only=True)
class Health:
    """What a look at the whole store found. `problems` is empty when it is sound; `notices` are warnings with what to
    do.
    """

    schema: int
    records: int
    problems: tuple[str, ...]
    notices: tuple[str, ...]

    def __str__(self) -> str:
        parts = [
            f"{self.records} {'record' if self.records == 1 else 'records'}",
            *(self.problems or ("sound",)),
            *self.notices,
        ]
        return "; ".join(parts)
