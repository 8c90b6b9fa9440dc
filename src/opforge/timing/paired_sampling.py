"""Takes pairs of samples from candidate and baseline, in random order within each pair, until the verdict is sure or
the last look is over."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from opforge.core.evidence.comparison import UNSURE, Comparison
from opforge.timing.paired_statistics import Rule, compare

Take = Callable[[], float]
"""One sample of a side: seconds per call."""


def sure(comparison: Comparison) -> bool:
    """Whether the verdict is any but UNSURE."""
    return comparison.outcome != UNSURE


def take_pairs(count: int, take_a: Take, take_b: Take, order: random.Random) -> Iterator[tuple[float, float]]:
    """`count` pairs of samples, which side goes first drawn anew for each."""
    for _ in range(count):
        if order.random() < 0.5:
            mine, other = take_a(), take_b()
        else:
            other, mine = take_b(), take_a()
        yield mine, other


def compare_while_sampling(
    a: str,
    b: str,
    take_a: Take,
    take_b: Take,
    rule: Rule,
    *,
    workload: str = "",
    dtype: str = "",
    order: random.Random | None = None,
    clock: Callable[[], float] = time.perf_counter,
    limit_s: float = float("inf"),
    settled: Callable[[Comparison], bool] = sure,
) -> Comparison:
    """The Comparison of two sides that are ready to be sampled.

    limit_s   no look is begun after this many seconds; the verdict then rests on the pairs there are
    settled   whether a comparison needs no more pairs
    Whatever a side raises passes through.
    """
    shuffle = order or random.Random()
    samples_a: list[float] = []
    samples_b: list[float] = []
    started = clock()
    comparison: Comparison | None = None
    for pairs in rule.looks:
        if comparison is not None and clock() - started > limit_s:
            return replace(
                comparison,
                notes=(
                    *comparison.notes,
                    f"stopped at {comparison.pairs} of {rule.looks[-1]} pairs: the time was up; raise --budget for a "
                    "surer verdict",
                ),
            )
        for mine, other in take_pairs(pairs - len(samples_a), take_a, take_b, shuffle):
            samples_a.append(mine)
            samples_b.append(other)
        comparison = compare(
            a, b, samples_a, samples_b, rule=rule, workload=workload, dtype=dtype, spent_s=clock() - started
        )
        if settled(comparison):
            return comparison
    assert comparison is not None  # a Rule has one look at least
    return comparison
