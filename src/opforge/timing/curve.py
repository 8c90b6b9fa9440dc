"""Time against size: where a curve bends, and where it jumps. Pure functions on points; nothing here measures."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from opforge.core.language.errors import UsageError

CLIFF = 1.3
"""Factor by which the cost per unit of work must jump from one size to the next to be called a cliff."""

MOST = 64
"""Sizes of a sweep: at a second each for a few implementations, some minutes."""
LONGEST_NUMBER = 15
"""Digits: more is no size of anything, and not exact as a float."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis to sweep and its values, ascending."""

    name: str
    values: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """One size: the axis' value, median seconds, its 95 % interval, the work in units that should cost the same each
    (bytes or
    FLOP), and the share of the roofline bound (None without one)."""

    value: int
    seconds: float
    low: float
    high: float
    work: float
    of_roof: float | None = None


@dataclass(frozen=True, kw_only=True)
class Cliff:
    """A jump of the cost per unit of work between two neighbouring sizes."""

    before: int
    after: int
    factor: float


def parse_axis(text: str) -> Axis:
    """`cols=128:65536:log` (powers of two; `log12`: twelve values), `cols=128:1024:128` (a step), `cols=100,200,300`.
    Raises UsageError.

    >>> parse_axis("cols=128:1024:log").values
    (128, 256, 512, 1024)
    >>> parse_axis("cols=100:400:100").values
    (100, 200, 300, 400)
    """
    form = "Write --axis NAME=FIRST:LAST:log, NAME=FIRST:LAST:STEP or NAME=A,B,C, e.g. cols=128:65536:log"
    match = re.fullmatch(r"\s*(\w+)\s*=\s*(.+?)\s*", text)
    if match is None:
        raise UsageError(f"{text!r} is no axis. {form}.")
    name, values = match.groups()
    if len(values) > 100 * MOST or any(len(number) > LONGEST_NUMBER for number in re.findall(r"\d+", values)):
        raise UsageError(f"That is too long for values of {name}. {form}.")
    if re.fullmatch(r"\d+(,\d+)*", values):
        chosen = sorted({int(value) for value in values.split(",")})
    else:
        parts = re.fullmatch(r"(\d+):(\d+)(?::(log\d*|\d+))?", values)
        if parts is None:
            raise UsageError(f"{values!r} is no range of {name}. {form}.")
        first, last, how = int(parts[1]), int(parts[2]), parts[3] or "log"
        if first < 1 or last < first:
            raise UsageError(f"{name} cannot go from {first} to {last}. {form}.")
        chosen = (
            _log(first, last, how.removeprefix("log"))
            if how.startswith("log")
            else _linear(first, last, int(how), form)
        )
    if chosen[0] < 1:
        raise UsageError(f"{name} = 0 leaves no work to time. {form}.")
    if len(chosen) > MOST:
        raise UsageError(f"{name} would take more than {MOST} values, which is the most. {form}.")
    return Axis(name=name, values=tuple(chosen))


def _log(first: int, last: int, count: str) -> list[int]:
    if not count:
        powers = [first * 2**power for power in range(MOST + 1) if first * 2**power <= last]
        return sorted({*powers, last})
    # one more than there may be is enough to be refused, and spans the range all the same
    number = min(max(2, int(count)), MOST + 1) if last > first else 1
    return sorted({round(first * (last / first) ** (position / max(1, number - 1))) for position in range(number)})


def _linear(first: int, last: int, step: int, form: str) -> list[int]:
    if step < 1:
        raise UsageError(f"A step of {step} goes nowhere. {form}.")
    return list(range(first, min(last, first + step * (MOST + 1)) + 1, step))


def knee(points: Sequence[CurvePoint]) -> int | None:
    """The size from which time follows the work: below it a fixed cost (launch, threads) dominates.

    time = fixed + work / rate is fitted in two pieces on logarithms, a constant below and proportional to the work
    above; the break with the least absolute deviation wins. None where one piece alone fits as well, or there are under
    4 points.
    """
    if len(points) < 4:
        return None
    ordered = sorted(points, key=lambda point: point.work)
    times = [math.log(point.seconds) for point in ordered]
    costs = [math.log(point.seconds / point.work) for point in ordered]

    def deviation(cut: int) -> float:
        total = 0.0
        for values in (times[:cut], costs[cut:]):
            level = median(values) if values else 0.0
            total += sum(abs(value - level) for value in values)
        return total

    best = min(range(len(ordered) + 1), key=deviation)
    alone = min(deviation(0), deviation(len(ordered)))
    # two points on each side at least, and a fit that is clearly better than one piece
    if not 2 <= best <= len(ordered) - 2 or deviation(best) > 0.7 * alone:
        return None
    return ordered[best].value


def cliffs(points: Sequence[CurvePoint]) -> tuple[Cliff, ...]:
    """Where a unit of work costs CLIFF times more than at the size before, beyond what the intervals leave open."""
    ordered = sorted(points, key=lambda point: point.value)
    jumps = []
    for before, after in itertools.pairwise(ordered):
        factor = (after.seconds / after.work) / (before.seconds / before.work)
        certain = (after.low / after.work) / (before.high / before.work)
        if factor >= CLIFF and certain > 1:
            jumps.append(Cliff(before=before.value, after=after.value, factor=factor))
    return tuple(jumps)


def words(name: str, points: Sequence[CurvePoint]) -> tuple[str, ...]:
    """Knee and cliffs in sentences."""
    bend = knee(points)
    lines = [f"knee at {name} = {bend}: below it, time hardly depends on the size"] if bend is not None else []
    return (
        *lines,
        *(
            f"cliff from {name} = {cliff.before} to {cliff.after}: {cliff.factor:.2f} times the cost per unit of work"
            for cliff in cliffs(points)
        ),
    )
