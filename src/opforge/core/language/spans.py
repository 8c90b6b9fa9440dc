"""Spans: what a run is doing now, and what its seconds went into. Written as a trace that ui.perfetto.dev and
chrome://tracing open.

`span("verify", "layernorm cuda_wide")` surrounds a piece of work. Those that are open say what is going on, for whoever
waits. Those that have ended are kept only between `record()` and `stop()`: otherwise a span costs a microsecond and
leaves nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

KEPT = 200_000
"""Spans that a recording keeps at most: 40 MB as JSON."""

MOST_ADOPTED = 100


@dataclass(frozen=True, kw_only=True)
class Span:
    """One piece of work: a word for its kind, what it was done to, when it began and ended (seconds of
    time.perf_counter), and whose it was.
    """

    name: str
    what: str
    lane: str
    begun_s: float
    ended_s: float


_open: dict[int, tuple[str, str, float]] = {}
_awaited: dict[int, Callable[[], str]] = {}
_numbers = itertools.count()
_kept: list[Span] | None = None


@contextlib.contextmanager
def span(name: str, what: str = "", lane: str = "") -> Iterator[None]:
    """Surround a piece of work. `lane` says whose it is in a trace: this thread's, unless it is given."""
    number, begun = next(_numbers), time.perf_counter()
    _open[number] = (name, what, begun)
    try:
        yield
    finally:
        del _open[number]
        kept(name, what, lane, begun, time.perf_counter())


def spanned(described: Callable[..., tuple[str, str, str]]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Surround every call of a function by a span. `described` gives the span's name, what and lane from the call's
    arguments.
    """

    def around(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            with span(*described(*args, **kwargs)):
                return function(*args, **kwargs)

        return call

    return around


def kept(name: str, what: str, lane: str, begun_s: float, ended_s: float) -> None:
    """Keep a span that somebody else measured, a worker say; nothing happens while nothing is recorded."""
    if _kept is not None and len(_kept) < KEPT:
        _kept.append(
            Span(name=name, what=what, lane=lane or threading.current_thread().name, begun_s=begun_s, ended_s=ended_s)
        )


def adopt(foreign: object, lane: str) -> None:
    """Keep the spans that another process sent, [name, begun_s, ended_s] each by the clock that all processes here
    share. What is malformed is left out.
    """
    for item in foreign[:MOST_ADOPTED] if isinstance(foreign, list) else ():
        if (
            isinstance(item, list)
            and len(item) == 3
            and isinstance(item[0], str)
            and all(isinstance(value, float) and value == value for value in item[1:])
        ):
            kept(item[0][:80], "", lane, item[1], item[2])


def sent() -> list[tuple[str, float, float]]:
    """The spans kept so far, for `adopt`, and none kept any more."""
    return [(item.name, item.begun_s, item.ended_s) for item in stop()[:MOST_ADOPTED]]


def recorded() -> bool:
    """Whether spans are being kept."""
    return _kept is not None


@contextlib.contextmanager
def awaited(words: Callable[[], str]) -> Iterator[None]:
    """Surround a wait that somebody may want to know of. `words` says how it stands, "" while there is nothing to say;
    any thread may call it.
    """
    number = next(_numbers)
    _awaited[number] = words
    try:
        yield
    finally:
        del _awaited[number]


def waits() -> tuple[str, ...]:
    """What is being waited for now, in words, the latest last."""
    return tuple(said for _, words in sorted(_awaited.copy().items()) if (said := words()))


def under_way() -> tuple[tuple[str, str, float], ...]:
    """(name, what, seconds since it began) of every open span, the latest last."""
    now = time.perf_counter()
    return tuple((name, what, now - begun) for _, (name, what, begun) in sorted(_open.copy().items()))


def record() -> None:
    """Begin to keep spans, forgetting earlier ones."""
    global _kept
    _kept = []


def stop() -> tuple[Span, ...]:
    """The spans kept since `record()`; nothing is kept any more."""
    global _kept
    ended, _kept = tuple(_kept or ()), None
    return ended


def by_name(spans: tuple[Span, ...]) -> Mapping[str, tuple[int, float]]:
    """How many spans of each name, and the seconds in them together, longest first. Spans that run beside or inside
    each other are counted each.
    """
    totals: dict[str, tuple[int, float]] = {}
    for item in spans:
        count, seconds = totals.get(item.name, (0, 0.0))
        totals[item.name] = (count + 1, seconds + item.ended_s - item.begun_s)
    return dict(sorted(totals.items(), key=lambda pair: -pair[1][1]))


def write(spans: tuple[Span, ...], path: Path) -> None:
    """The spans in the Trace Event Format (JSON), one row a lane; times in microseconds from the first."""
    lanes = {lane: number for number, lane in enumerate(dict.fromkeys(item.lane for item in spans), 1)}
    first = min((item.begun_s for item in spans), default=0.0)
    names = [
        {"ph": "M", "name": "thread_name", "pid": os.getpid(), "tid": number, "args": {"name": lane}}
        for lane, number in lanes.items()
    ]
    events = [
        {
            "ph": "X",
            "name": f"{item.name} {item.what}".strip(),
            "cat": item.name,
            "pid": os.getpid(),
            "tid": lanes[item.lane],
            "ts": round((item.begun_s - first) * 1e6, 1),
            "dur": round((item.ended_s - item.begun_s) * 1e6, 1),
        }
        for item in spans
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"traceEvents": [*names, *events], "displayTimeUnit": "ms"}), encoding="utf-8")
