"""The versions of a kernel, of an optimisation's rounds or a ladder on record: what each changed and gained, its
profile and the next step, and the way under the roofline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opforge.core.definition.implementation import Config
from opforge.core.evidence.optimization import KEPT, ROUND, START, OptimizationRound
from opforge.core.evidence.record import Record
from opforge.core.language import units
from opforge.report.view import of_roof, timing_of

HEADS = {
    "en": ("Version", "Change", "Time", "Gain", "Profile", "Next step"),
    "zh": ("版本", "优化点", "耗时", "性能提升", "瓶颈与占比", "下一步"),
}


@dataclass(frozen=True, kw_only=True)
class Version:
    """One version. gain: how many times as fast as the one before; None for the first. profile, next: in words."""

    name: str
    change: str
    seconds: float | None
    gain: float | None
    profile: str
    next: str


@dataclass(frozen=True, kw_only=True)
class Move:
    """A way under the roofline, from version to version.

    operator    whose; intensity: FLOP per byte
    rates       FLOP/s of each version, the first one first
    words       of each version
    """

    operator: str
    intensity: float
    rates: tuple[float, ...]
    words: tuple[str, ...]


def of_run(rounds: Sequence[OptimizationRound]) -> tuple[Version, ...]:
    """The versions of one optimisation: its start, and every round that was kept."""
    found: list[Version] = []
    kept = [one for one in rounds if one.stage == START or (one.stage == ROUND and one.decision == KEPT)]
    for number, one in enumerate(kept):
        # a round's diagnosis is of what it began with: that of its result stands in the round after it
        later = next((other for other in rounds if other.number > one.number), rounds[-1])
        diagnosis = later.diagnosis if one.stage == ROUND else one.diagnosis
        change = next((item.change for item in one.tried if item.source == one.best), one.strategy) or "start"
        share = f", {diagnosis.fraction:.0%} of the roof" if diagnosis.fraction is not None else ""
        following = diagnosis.directions[0] if diagnosis.directions else None
        gain = one.comparison.speedup if one.comparison is not None and one.stage == ROUND else None
        found.append(
            Version(
                name=f"{one.implementation} v0.{number}",
                change=change,
                seconds=one.best_s,
                gain=gain,
                profile=f"{diagnosis.bottleneck}{share}",
                next=f"{following.what}: `{following.command}`" if following is not None else "",
            )
        )
    return tuple(found)


def of_ladder(records: Sequence[Record], ideas: Mapping[str, str]) -> tuple[Version, ...]:
    """The ladder of an operator on one workload and dtype, the slowest implementation first. ideas: a line on each."""
    timed = sorted(
        (record for record in records if timing_of(record) is not None),
        key=lambda record: -_seconds(record),
    )
    found: list[Version] = []
    for before, record in zip([None, *timed], timed, strict=False):
        share = of_roof(record)
        told = f"{share:.0%} of the roof" if share is not None else "roof unknown"
        found.append(
            Version(
                name=record.implementation,
                change=ideas.get(record.implementation, ""),
                seconds=_seconds(record),
                gain=_seconds(before) / _seconds(record) if before is not None else None,
                profile=f"{told}, limited by {record.limiter or 'what is not known'}",
                next=f"`opforge diagnose {record.operator} {record.implementation} --workload {record.workload} "
                f"--dtype {record.dtype}`",
            )
        )
    return tuple(found)


def version_report(versions: Sequence[Version], title: str, language: str = "en") -> str:
    """The versions as a Markdown table. language: "en" or "zh"."""
    lines = [f"# {title}", "", f"| {' | '.join(HEADS[language])} |", "|---|---|---|---|---|---|"]
    for one in versions:
        gain = f"{100 * (one.gain - 1):+.0f} %" if one.gain is not None else ""
        seconds = units.seconds(one.seconds) if one.seconds is not None else ""
        cells = (one.name, one.change, seconds, gain, one.profile, one.next)
        lines.append("| " + " | ".join(" ".join(cell.split()).replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def moves_of_runs(rounds: Sequence[OptimizationRound], records: Sequence[Record]) -> tuple[Move, ...]:
    """The way of each operator's newest optimisation on its device, where a record says what its workload costs."""
    newest = {(one.operator, one.device): one.run for one in rounds}
    found: list[Move] = []
    for (operator, device), run in newest.items():
        mine = [one for one in rounds if one.run == run]
        first = mine[0]
        point = (operator, device, first.workload, first.dtype)
        cost = next((r.cost for r in records if (r.operator, r.device, r.workload, r.dtype) == point), None)
        versions = [one for one in of_run(mine) if one.seconds]
        if cost is not None and cost.intensity > 0 and len(versions) > 1:
            found.append(_move(operator, cost.intensity, cost.flops, versions))
    return tuple(found)


def moves_of_tuning(records: Sequence[Record], defaults: Mapping[tuple[str, str], Config]) -> tuple[Move, ...]:
    """From the default to the fastest point of a space, for each implementation that has both on record.

    defaults   by operator and implementation
    """
    points: dict[tuple[str, str, str, str, str], list[Record]] = {}
    for record in records:
        if timing_of(record) is not None and record.cost.intensity > 0:
            key = (record.operator, record.implementation, record.workload, record.dtype, record.device)
            points.setdefault(key, []).append(record)
    found: list[Move] = []
    for (operator, implementation, *_), mine in points.items():
        default = defaults.get((operator, implementation))
        before = [record for record in mine if record.config == default]
        after = min((record for record in mine if record.config != default), key=_seconds, default=None)
        if before and after is not None and _seconds(after) < _seconds(before[-1]):
            versions = [
                Version(name=implementation, change=words, seconds=_seconds(one), gain=None, profile="", next="")
                for words, one in (("default", before[-1]), (f"tuned: {after.config}", after))
            ]
            found.append(_move(operator, after.cost.intensity, after.cost.flops, versions))
    return tuple(found)


def _move(operator: str, intensity: float, flops: float, versions: Sequence[Version]) -> Move:
    return Move(
        operator=operator,
        intensity=intensity,
        rates=tuple(flops / one.seconds for one in versions if one.seconds),
        words=tuple(f"{one.name}: {one.change}" for one in versions),
    )


def _seconds(record: Record) -> float:
    timing = timing_of(record)
    assert timing is not None
    return timing.median_s
