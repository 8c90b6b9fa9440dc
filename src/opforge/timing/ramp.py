"""How long a ramp is after a pause: calls take longer while caches fill and threads find processors."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

LONGEST_RAMP, LONGEST_RAMP_S, SETTLED, MIDDLE_OF, CONTENDED = 96, 0.1, 1.03, 8, 3
"""How long a candidate's ramp is is told from calls in a row while it warms up, so many and of so many seconds at most:
it is over where the middle of eight is within 3 % of what the last quarter takes. A third-level cache that holds what
the second drops fills by and by: with results of 26 MB a call takes 2.1 ms at first, 1.1 at the fortieth, 1.05 from the
eightieth on, and 30 ms are over at the fifteenth. After rivals, whose data must leave first, it takes up to three times
as many (docs/timing.md#page-faults-and-ramps)."""


def ramp_of(calls_s: Sequence[float]) -> int:
    """How many calls in a row a ramp takes: until the middle of MIDDLE_OF is within SETTLED of the last quarter's."""
    settled_s = SETTLED * median(calls_s[-max(1, len(calls_s) // 4) :])
    starts = range(len(calls_s) - MIDDLE_OF + 1)
    return next((at for at in starts if median(calls_s[at : at + MIDDLE_OF]) <= settled_s), len(calls_s))
