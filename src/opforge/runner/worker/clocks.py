"""The clocks that samples are taken by, that of the host among them (runner/worker/device_clocks.py has those of a
GPU). Each takes samples of a launch: seconds per call, a sample being a batch of calls between two readings.

Only `run` lies between the readings: inputs are packed, outputs allocated and code compiled before. The readings are
taken through names bound when this module was imported, so that a kernel which replaces `time.perf_counter` later
changes nothing here. What a device sees of a call is taken by `device_clocks`.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter as _perf_counter
from typing import Any

RunFunction = Callable[[], object]


def host_samples(run: RunFunction, batch: int, count: int, clock: Callable[[], float] = _perf_counter) -> list[float]:
    """Host clock around `batch` calls, `count` times. For work that is done when the call returns (CPU kernels).

    >>> ticks = iter([0.0, 2.0, 10.0, 13.0])
    >>> host_samples(lambda: None, 1, 2, clock=ticks.__next__)
    [2.0, 3.0]
    """
    samples: list[float] = []
    calls = range(batch)
    for _ in range(count):
        start = clock()
        for _ in calls:
            run()
        samples.append((clock() - start) / batch)
    return samples


def clock_step(clock: Callable[[], float] = _perf_counter, tries: int = 200) -> float:
    """The smallest step between two different readings, seconds: the clock's resolution and its own cost together.

    >>> ticks = iter([0.0, 0.0, 3.0, 5.0, 5.0, 7.0])
    >>> clock_step(ticks.__next__, tries=2)
    2.0
    """
    smallest = float("inf")
    for _ in range(tries):
        first = clock()
        second = clock()
        while second == first:
            second = clock()
        smallest = min(smallest, second - first)
    return smallest


def launch_samples(
    run: RunFunction, batch: int, count: int, wait: RunFunction, clock: Callable[[], float] = _perf_counter
) -> list[float]:
    """What the host spends to start a call, seconds: `batch` calls without waiting for the device, which `wait` does
    outside the readings.
    """
    samples: list[float] = []
    for _ in range(count):
        wait()
        start = clock()
        for _ in range(batch):
            run()
        samples.append((clock() - start) / batch)
    wait()
    return samples


def spread_out(runs: list[RunFunction], batch: int) -> tuple[RunFunction, int]:
    """One run that goes round `runs`, and `batch` rounded up to whole rounds: no buffer is met again before all others
    were.

    >>> seen = []
    >>> run, batch = spread_out([lambda: seen.append("a"), lambda: seen.append("b")], 3)
    >>> [run() for _ in range(batch)] and seen
    ['a', 'b', 'a', 'b']
    """
    if len(runs) == 1:
        return runs[0], batch
    place = [0]

    def run() -> Any:
        here = runs[place[0]]
        place[0] = (place[0] + 1) % len(runs)
        return here()

    return run, -(-batch // len(runs)) * len(runs)
