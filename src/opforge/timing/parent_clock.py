"""The parent's clock: how long requests took in this process, which no candidate can reach, held against what is said
of them.

Each sample is a request of its own, and no two are of the same length. What a request takes beyond what is claimed for
its calls is the way there and back, the same for a short one and a long one. Where it grows with the number of calls,
they take longer than is claimed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import median

from opforge.core.language import units

FEWEST = 12
"""Six pairs: the median of the slopes bears two that others disturbed."""
AGREEMENT = 0.1
"""The share of a claim that is not told from the way there and back: what two clocks of a GPU may disagree by as well
(timing.timers).
"""
RESAMPLES = 400
"""The bound is the lowest of them: one honest series in some hundreds is suspected, and then asked again, longer."""
SURE = 0.999
"""Above 1 - 1 / RESAMPLES: the lowest resample is the bound."""


@dataclass(frozen=True, kw_only=True)
class TimedRequest:
    """A request for one sample: its calls, the seconds that are claimed for all that was done, and the seconds of the
    request by the parent's clock.
    """

    calls: int
    claimed_s: float
    wall_s: float


def growth(points: Sequence[tuple[int, float]], seed: int = 0) -> tuple[float, float] | None:
    """How y grows with x, and what it grows by at least (SURE, by the bootstrap): the median slope between a point of
    the lower half in x and one of the upper half, each point in one pair, so that neither where the x fell nor a few
    points that others disturbed move it.

    None where there are too few points, or all at one place.

    >>> growth([(x, 2.0 * x + 1) for x in range(12)])
    (2.0, 2.0)
    """
    # points of one x stay in the order they were taken: sorted by y too, the low ones of the middle x would be in the
    # lower half
    ordered = sorted(points, key=itemgetter(0))
    half = len(ordered) // 2
    if len(ordered) < FEWEST:
        return None
    slopes = [
        (above - below) / (more - fewer)
        for (fewer, below), (more, above) in zip(ordered[:half], ordered[-half:], strict=True)
        if more > fewer
    ]
    if not slopes:
        return None
    generator = random.Random(seed)
    again = sorted(median(generator.choices(slopes, k=len(slopes))) for _ in range(RESAMPLES))
    return median(slopes), again[int((1 - SURE) * RESAMPLES)]


def seconds_per_call(asked: Sequence[TimedRequest]) -> float | None:
    """What a call takes by the parent's clock; None where too little was asked."""
    slope = growth([(item.calls, item.wall_s) for item in asked])
    return slope[0] if slope is not None and slope[0] > 0 else None


def understated(
    samples_s: Sequence[float],
    asked: Sequence[TimedRequest],
    agreement: float = AGREEMENT,
    least_s: float = 0.0,
    *,
    surely: bool = True,
) -> str | None:
    """Why these samples are not believed: calls take longer by the parent's clock than is claimed, by more than this
    share of it and `least_s`, and by more than the machine's unrest can explain; `surely` False asks only whether they
    seem to. None when they do not.

    >>> honest = [TimedRequest(calls=n, claimed_s=n * 1e-3, wall_s=n * 1e-3 + 2e-4) for n in range(10, 30)]
    >>> understated([1e-3] * 20, honest) is None
    True
    >>> half = [TimedRequest(calls=item.calls, claimed_s=item.claimed_s / 2, wall_s=item.wall_s) for item in honest]
    >>> understated([0.5e-3] * 20, half) is None
    False
    """
    beyond = growth([(item.calls, item.wall_s - item.claimed_s) for item in asked])
    claimed = median(samples_s) if samples_s else 0.0
    if beyond is None or beyond[1 if surely else 0] <= max(least_s, agreement * claimed):
        return None
    return (
        f"a call takes {units.seconds(claimed + beyond[0])} by this process's clock and {units.seconds(claimed)} "
        "by the worker's"
    )
