"""How long compilers took for each implementation, version by version of its source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from opforge.core.evidence.record import Record
from opforge.core.language import units

FOR_ALL_DTYPES = ("cpp", "cuda")
"""Backends whose compiler makes one library for all dtypes."""


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """One version of a source on one environment: the day of its first record and the longest that its compiler was
    seen to take, in seconds. Later ones find the compiler's cache, and take next to nothing.
    """

    source_sha256: str
    fingerprint: str
    day: str
    seconds: float
    records: int


@dataclass(frozen=True, kw_only=True)
class CompileSeries:
    """The versions of one implementation in one config on a device, oldest first. `dtype` is "" where one library
    serves all."""

    operator: str
    implementation: str
    config: str
    dtype: str
    device: str
    versions: tuple[Compiled, ...]

    @property
    def words(self) -> str:
        """A line for the series, and one for each version."""
        told = " ".join(part for part in (self.dtype, f"[{self.config}]" if self.config else "") if part)
        head = f"{self.operator}:{self.implementation}{f' {told}' if told else ''} on {self.device}"
        lines = [
            f"  {item.day}  source {item.source_sha256[:8]} [{item.fingerprint}]  {units.seconds(item.seconds)}"
            + (f"  ({units.ratio(item.seconds / before.seconds)} of the one before)" if before is not None else "")
            for before, item in zip((None, *self.versions), self.versions, strict=False)
        ]
        return "\n".join([head, *lines])


def compile_history(records: Iterable[Record]) -> tuple[CompileSeries, ...]:
    """The series of the records that know of a compiler's time, by name."""
    found: dict[tuple[str, ...], dict[tuple[str, str], list[Record]]] = {}
    for record in sorted(records, key=lambda record: record.created_at):
        if record.compile_s is None or not record.compile_s > 0:
            continue
        dtype = "" if record.backend in FOR_ALL_DTYPES else record.dtype
        config = str(record.config) if record.config.values else ""
        key = (record.operator, record.implementation, config, dtype, record.device)
        version = (record.source_sha256, record.environment.fingerprint)
        found.setdefault(key, {}).setdefault(version, []).append(record)
    return tuple(
        CompileSeries(
            operator=operator,
            implementation=implementation,
            config=config,
            dtype=dtype,
            device=device,
            versions=tuple(
                Compiled(
                    source_sha256=source,
                    fingerprint=fingerprint,
                    day=same[0].created_at[:10],
                    seconds=max(record.compile_s or 0.0 for record in same),
                    records=len(same),
                )
                for (source, fingerprint), same in versions.items()
            ),
        )
        for (operator, implementation, config, dtype, device), versions in sorted(found.items())
    )
