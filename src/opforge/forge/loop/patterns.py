"""What helped, counted over the rounds on record: by family, bottleneck, device and strategy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from opforge.core.evidence.optimization import KEPT, ROUND, OptimizationRound


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """How often a strategy was kept, and what it gained.

    tried, kept   rounds
    low, high     95 % interval (Wilson) of the share that was kept
    gain          median of the gains of those that were kept (1.3: 1.3 times as fast); None where none was
    """

    family: str
    bottleneck: str
    device: str
    strategy: str
    tried: int
    kept: int
    low: float
    high: float
    gain: float | None


def patterns(rounds: Iterable[OptimizationRound]) -> tuple[Pattern, ...]:
    """The Patterns of rounds, those that helped most often first."""
    groups: dict[tuple[str, str, str, str], list[OptimizationRound]] = {}
    for one in rounds:
        if one.stage == ROUND and one.strategy:
            groups.setdefault((one.family, one.diagnosis.bottleneck, one.device, one.strategy), []).append(one)
    found = []
    for (family, bottleneck, device, strategy), members in groups.items():
        kept = [one for one in members if one.decision == KEPT]
        gains = [one.comparison.speedup for one in kept if one.comparison is not None]
        low, high = wilson(len(kept), len(members))
        found.append(
            Pattern(
                family=family,
                bottleneck=bottleneck,
                device=device,
                strategy=strategy,
                tried=len(members),
                kept=len(kept),
                low=low,
                high=high,
                gain=median(gains) if gains else None,
            )
        )
    return tuple(sorted(found, key=lambda item: (-item.kept / item.tried, -(item.gain or 0.0), item.strategy)))


def expected(past: Sequence[OptimizationRound], family: str, bottleneck: str, strategy: str) -> float | None:
    """The median gain of a strategy over like rounds, those without gain counted as 1; None without any."""
    alike = [
        one
        for one in past
        if one.stage == ROUND and (one.family, one.diagnosis.bottleneck, one.strategy) == (family, bottleneck, strategy)
    ]
    gains = [one.comparison.speedup if one.decision == KEPT and one.comparison else 1.0 for one in alike]
    return median(gains) if gains else None


def wilson(hits: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a share.

    >>> [round(value, 2) for value in wilson(5, 5)]
    [0.57, 1.0]
    """
    if of == 0:
        return 0.0, 1.0
    share = hits / of
    centre = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of)) / (1 + z * z / of)
    return max(0.0, centre - half), min(1.0, centre + half)
