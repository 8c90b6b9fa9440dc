"""A failing case made small: the least axes, the plainest values and layout that still fail in the same way."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator

from opforge.core.definition.operator import Case, Operator
from opforge.core.definition.shapes import AxisValue
from opforge.core.evidence.verdict import Broken, Crash, Mismatch, Verdict

PLAINER = {
    "uniform": "normal",
    "skewed": "normal",
    "sparse": "normal",
    "twins": "normal",
    "tiny": "normal",
    "large": "normal",
    "offset": "normal",
    "special": "normal",
}


@dataclasses.dataclass(kw_only=True)
class Shrunk:
    """The verdict on the smallest case that still fails, and every attempt: axes, and whether it failed."""

    verdict: Verdict
    attempts: list[tuple[Case, bool]]


def shrink(
    operator: Operator, dtype: str, failure: Verdict, attempt: Callable[[Case], Verdict | None], seconds: float
) -> Shrunk:
    """Ask `attempt` about ever smaller cases until nothing smaller fails or `seconds` have gone.

    attempt   runs one case in a fresh worker: the failure, or None when the case is right, refused or not defined
    The seed stays, so what is returned replays. A case that needs another one before it (`after`) is left as it is.
    """
    case = getattr(failure, "case", None)
    tried: list[tuple[Case, bool]] = []
    if case is None or getattr(failure, "after", None) is not None or seconds <= 0:
        return Shrunk(verdict=failure, attempts=tried)
    until = time.monotonic() + seconds
    best = failure
    progress = True
    seen = {_key(case)}
    while progress and time.monotonic() < until:
        progress = False
        for smaller in _smaller(operator, case):
            smaller = dataclasses.replace(
                smaller, axes=operator.completed(smaller.axes, operator.scalar_values(smaller.scalars))
            )
            if (
                _key(smaller) in seen
                or operator.violated(smaller.axes, dtype, operator.scalar_values(smaller.scalars)) is not None
            ):
                continue
            if time.monotonic() >= until:
                break
            seen.add(_key(smaller))
            found = attempt(smaller)
            same = found is not None and _kind(found) == _kind(failure)
            tried.append((smaller, same))
            if same:
                assert found is not None
                best, case, progress = found, smaller, True
                break
    if isinstance(best, (Broken, Crash)) and best is not failure:
        best = dataclasses.replace(best, shrunk_from=getattr(failure, "case", None))
    if isinstance(best, Mismatch) and best is not failure:
        assert isinstance(failure, Mismatch)
        best = dataclasses.replace(best, shrunk_from=failure.case, window=failure.window, first_metrics=failure.metrics)
    return Shrunk(verdict=best, attempts=tried)


def _kind(verdict: Verdict) -> tuple[object, ...]:
    match verdict:
        case Mismatch():
            return "Mismatch", verdict.output, verdict.law
        case Broken():
            return "Broken", verdict.reason.split(":")[0].split("(")[0][:40]
        case Crash():
            return "Crash", verdict.status
    return (type(verdict).__name__,)


def _key(case: Case) -> tuple[object, ...]:
    return tuple(sorted(case.axes.items())), case.distribution, case.layout, tuple(sorted(case.scalars.items()))


def _smaller(operator: Operator, case: Case) -> Iterator[Case]:
    """Cases that are a step simpler, the boldest first."""
    name = case.name.removesuffix("_shrunk") + "_shrunk"
    case = dataclasses.replace(case, name=name)
    if case.layout != "contiguous":
        yield dataclasses.replace(case, layout="contiguous")
    if case.distribution in PLAINER:
        yield dataclasses.replace(case, distribution=PLAINER[case.distribution])
    if case.scalars:
        yield dataclasses.replace(case, scalars={})
    for divide in (8, 2, 0):
        for axis in operator.free_axes:
            for value in _less(case.axes[axis], divide):
                yield dataclasses.replace(case, axes={**case.axes, axis: value})


def _less(value: AxisValue, divide: int) -> Iterator[AxisValue]:
    """An axis divided by `divide`; with 0, taken a quarter, then one, away. A variadic axis loses a factor, then its
    values shrink.
    """
    if isinstance(value, tuple):
        if len(value) > 1:
            yield value[1:]
            yield value[:-1]
        for position, extent in enumerate(value):
            for less in _less(extent, divide):
                assert isinstance(less, int)
                yield (*value[:position], less, *value[position + 1 :])
        return
    steps = [value // divide] if divide else [value - value // 4, value - 1]
    yield from (step for step in dict.fromkeys(steps) if 1 <= step < value)
