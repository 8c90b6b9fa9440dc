"""Whether a call on content that nobody has seen takes longer than one on what was answered a moment ago.

Before each call this process writes to the same places of the same memory: blocks of every input, and of every output.
They hold what they held, or other content (of inputs the same values in other places, of outputs what stands for "not
written"). An honest kernel takes as long for one as for the other. One that keeps answers, that looks whether its
outputs are there already, or that does a part of its work then, doesn't.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from opforge.core.definition.dtypes import DTYPES
from opforge.core.language import spans
from opforge.runner import fresh_seed
from opforge.runner.wire.messages import OTHER, SAME, Failure, Sample, Unfit
from opforge.runner.worker.arena import Arena, Slot
from opforge.runner.worker.poison import poison_output
from opforge.timing import Candidate
from opforge.timing.parent_clock import SURE
from opforge.verify import PreparedCase

LOOKS = (8, 24, 48)
"""Pairs of calls at each look. An honest kernel is done at the first: eight pairs whose median is beyond INNOCENT by
chance lead to the second."""
FEW_LOOKS = (4, 8, 16)
"""For calls that are slow or have much memory."""
INNOCENT = 1.08
"""A median below this ends it. A kernel that left out more would save less than clocks may disagree by (10 %)."""
SLOWER = 1.15
"""What is held against a kernel, surely (SURE, by the bootstrap)."""
GRAIN_S = 2e-6
"""Differences that are not held against anybody: some steps of the coarsest clock, a GPU's events (0.5 us)."""
CALLS = 3
"""Calls after which each place that an allocator gives out in turn holds a result: the last one's is still held while
the next is made, and a caller's may be."""
BLOCKS, BLOCK_BYTES = 16, 4096
"""What is written of a tensor: its first and its last block, and so many at random places."""
RESAMPLES = 2000


@spans.spanned(lambda candidate, prepared, looks=LOOKS: ("audit: remembered", "", ""))
def remembered(candidate: Candidate, prepared: PreparedCase, looks: Sequence[int] = LOOKS) -> str | None:
    """Why the time of a candidate is not believed; None where nothing speaks against it, or no clock can tell."""
    question = Sample(launch=candidate.launch, timer=by_calls(candidate), cache="warm")
    draw = random.SystemRandom()
    seen: list[float] = []
    fresh: list[float] = []
    for pairs in looks:
        while len(seen) < pairs:
            arms = [(seen, False), (fresh, True)]
            draw.shuffle(arms)
            for times, other in arms:
                # the results of what was written last are in all places where a result may be made
                candidate.ask(replace(question, lead=CALLS))
                write(prepared.arena, other, draw)
                # a device is busy until the host has launched the call: what was done before it differs in how long it
                # takes, and the host's time to launch would be in the shorter one's
                told = OTHER if other else SAME
                answer = candidate.ask(replace(question, upload=True, written=told, apart=True))
                if isinstance(answer, Unfit):
                    return None
                if isinstance(answer, Failure):
                    return f"after timing: {answer.reason}"
                times.append(answer.samples[0])
        new, old = median(fresh), median(seen)
        if new <= INNOCENT * old or new - old <= GRAIN_S:
            return None
    if surely_beyond([b / a for a, b in zip(seen, fresh, strict=True)]) <= SLOWER:
        return None
    return (
        f"a call takes {new:.3g} s on inputs it has not seen and {old:.3g} s on the same inputs again: it keeps "
        "answers, or leaves out what it finds done"
    )


def by_calls(candidate: Candidate) -> str:
    """The clock of single calls, whatever the candidate was timed by."""
    return "host" if candidate.timer == "host" else "cuda_event"


def surely_beyond(ratios: Sequence[float]) -> float:
    """What the median of these ratios surely exceeds (SURE, by the bootstrap).

    >>> surely_beyond([2.0] * 9), surely_beyond([1.0] * 8 + [9.0])
    (2.0, 1.0)
    """
    generator = random.Random(0)
    again = sorted(median(generator.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return again[int((1 - SURE) * RESAMPLES)]


def write(arena: Arena, other: bool, draw: random.Random) -> None:
    """Write blocks of every floating-point input and of every output: what stands there, or `other` content."""
    whole = arena.bytes()
    for slot in arena.slots:
        size = DTYPES[slot.dtype].itemsize
        if slot.role == "input" and (DTYPES[slot.dtype].whole or not slot.span_bytes):
            # what is counted, or points somewhere, may have an order
            continue
        if slot.role == "input" and not slot.dense:
            _swap(arena.tensor(slot.name), other, draw)
            continue
        for place in _places(slot, draw):
            region = whole[place]
            if slot.role == "input":
                # a permutation of what stands there: values stay within their domain
                values = region.view(-1, size)
                values.copy_(values.roll(draw.randrange(1, len(values)) if other else 0, 0).clone())
                continue
            poisoned = region.clone()
            poison_output(poisoned, slot.dtype, fresh_seed(), 0)
            region.copy_(poisoned if other else region.clone())


def _places(slot: Slot, draw: random.Random) -> Iterator[slice]:
    """The bytes of a slot's blocks, in whole elements."""
    size = DTYPES[slot.dtype].itemsize
    count, each = slot.span_bytes // size, max(1, BLOCK_BYTES // size)
    starts = [0] if count > 1 else []
    if count > each:
        starts = [0, count - each, *(draw.randrange(count - each + 1) for _ in range(min(BLOCKS, count // each)))]
    for start in starts:
        yield slice(slot.offset + start * size, slot.offset + min(count, start + each) * size)


def _swap(tensor: Any, other: bool, draw: random.Random) -> None:
    """Two elements of a tensor with gaps written, in each other's places if `other`."""
    first, second = (tuple(draw.randrange(extent) for extent in tensor.shape) for _ in range(2))
    a, b = tensor[first].clone(), tensor[second].clone()
    tensor[first], tensor[second] = (b, a) if other else (a, b)
