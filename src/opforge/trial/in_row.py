"""Whether calls that follow each other at once do their work: the content changes between them, and nobody who
is called is told.

A request of its own begins after a pause, and a kernel that looks at the clock, or at the frames above it, knows the
first call of each. The calls of the samples follow at once. Here the sampler (on a GPU a kernel of its own, in the same
graph) writes a few elements of the inputs before each sample: those by which the twins of
trial.audit.unseen_contents differ, or what stands there. The answer of the last call is judged, and a call on changed
content takes as long as one on the same.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.operator import Operator
from opforge.core.evidence.verdict import Broken, Checked, Mismatch, Verdict
from opforge.core.language import spans
from opforge.runner.wire.messages import OTHER, Failure, Sample, Unfit
from opforge.timing import Candidate
from opforge.trial.baselines import tolerated
from opforge.trial.unseen_content import GRAIN_S, INNOCENT, SLOWER, surely_beyond
from opforge.verify import PreparedCase, judge

MOST_PLACES = 256
"""Elements that the twins may differ by: three inputs' are 48, and a pipe holds two thousand."""
ENDS = (1, 1, 0, 1)
"""Requests whose last answer is judged, by the content that it is for. Before it there was the other, and the first
call had the first content: who leaves out two calls in three is right in all of them in one verdict of 81.
"""
LOOKS = (24, 72, 144)
"""Samples at each look: half of them, about, on changed content."""
DEVICE_LOOKS = (6, 12, 24)
"""Pairs of rows on a device at each look, half on changed content."""
DEVICE_ROW, MOST_LEAD = 16, 64
"""Calls in one of those rows, and calls before one whose last answer is judged: a graph takes time to build."""
APART, APART_S = 1.35, 2e-6
"""What a call may take more in a graph where another kernel comes between two of them: overlap with its neighbour, and
its own way to the device.
"""
APART_LOOKS, APART_TRIES, PAUSE_S = 12, 5, 1.0
"""Pairs of such a row and of one as it was timed, before anybody is accused, and how often they are taken while the
time that is claimed does not come out either: four searches beside each other on an H200 called ten honest kernels
broken, PyTorch's linear among them, whose rows another search's verification had made 1.4 to 2 times as long.
"""
WORKS_ON = "after timing: its outputs changed after the call had returned: work goes on that no clock sees"
ROW_S = 0.02
"""Seconds of calls in a row before the one that is judged, at most: a turn's lead and more (timing.measure)."""


@spans.spanned(lambda candidate, call_s, unseen, operator, isolation, cache="warm": ("audit: in a row", "", ""))
def in_row(
    candidate: Candidate,
    call_s: float,
    unseen: Sequence[PreparedCase],
    operator: Operator,
    isolation: str,
    cache: str = "warm",
) -> Verdict | None:
    """The failure, if any, of a candidate whose calls are claimed to take `call_s`, with a `cache` that is warm or
    cold: then every second answer that is judged is that of a call after a flush. None also where no row can be asked
    for: an input that each call overwrites, contents that differ in more than a few elements, calls that cannot be
    captured though a graph timed them.
    """
    first, second = unseen[0], unseen[-1]
    if operator.overwritten or (first.place.type != "cpu" and candidate.timer == "host"):
        return None
    places = tuple(differing(first, second))
    if not 0 < len(places) <= MOST_PLACES:
        return None
    draw = random.SystemRandom()
    question = Sample(launch=candidate.launch, timer=row_clock(candidate), cache="warm", places=places, written=OTHER)
    contents = (first, _in_place_of(first, second))
    on_device = candidate.timer != "host"
    caches = ("warm", cache) if on_device and cache == "cold" else ("warm",)
    for at, ends in enumerate(ENDS):
        first.reset()
        calls = max(2, int(ROW_S / max(1e-6, call_s)))
        plan = bytes([*(draw.randrange(2) for _ in range(draw.randrange(min(calls, 16)))), 1 - ends, ends])
        lead = draw.randrange(1, min(calls, MOST_LEAD) if on_device else calls)
        answer = candidate.ask(
            replace(
                question,
                lead=lead,
                count=len(plan),
                contents=plan,
                collected=True,
                upload=on_device,
                cache=caches[at % len(caches)],
            )
        )
        if isinstance(answer, Unfit):
            return None
        again = contents[ends]
        if isinstance(answer, Failure):
            return Broken(
                case=again.case, dtype=again.dtype, reason=f"after timing: {answer.reason}", isolation=isolation
            )
        if not on_device and answer.left != first.arena.checksum():
            return Broken(case=again.case, dtype=again.dtype, reason=WORKS_ON, isolation=isolation)
        outcome = judge(again, operator, isolation, measured=False)
        if isinstance(outcome, Mismatch) and not tolerated(candidate, outcome, again):
            return replace(
                outcome,
                cause="right when it is called by itself and wrong in a row of calls, on inputs that change between "
                f"them: what was timed is not the work; {outcome.cause}",
            )
        if not isinstance(outcome, Checked | Mismatch):
            return outcome
    look = _slower_on_device if on_device else _slower
    reason = look(candidate, call_s, first, question, draw)
    return Broken(case=first.case, dtype=first.dtype, reason=reason, isolation=isolation) if reason else None


def row_clock(candidate: Candidate) -> str:
    """The clock of calls in a row: the graph, where a graph timed them, or the events around them."""
    return candidate.timer if candidate.timer in ("host", "cuda_graph") else "cuda_event"


def _slower_on_device(
    candidate: Candidate, call_s: float, first: PreparedCase, question: Sample, draw: random.Random
) -> str | None:
    """Why calls in a row are held to do more where inputs change between them, or as soon as anything is written
    between them; None where nothing speaks for it.
    """
    seen: list[float] = []
    fresh: list[float] = []
    calls = max(2, min(DEVICE_ROW, int(ROW_S / max(1e-6, call_s))) // 2 * 2)
    same, changing = bytes(calls), bytes([0, 1] * (calls // 2))
    alone: list[float] = []
    first.reset()
    # nothing is read back, and what changes is written before each call: the memory goes to the device once
    upload = True
    for looks in DEVICE_LOOKS if call_s < ROW_S else DEVICE_LOOKS[:1]:
        while len(seen) < looks:
            arms = [(seen, same), (fresh, changing)]
            draw.shuffle(arms)
            for times, plan in arms:
                answer = candidate.ask(replace(question, lead=1, count=len(plan), contents=plan, upload=upload))
                upload = False
                if isinstance(answer, Failure):
                    return _told(answer)
                times.append(max(1e-9, answer.samples[0] - answer.lead_s))
                alone.append(answer.lead_s)
        new, old = median(fresh), median(seen)
        changed = new > INNOCENT * old and new - old > GRAIN_S
        apart = candidate.timer == "cuda_graph" and old > _most_apart(call_s)
        if not changed and not apart:
            return None
    if changed and surely_beyond([b / a for a, b in zip(seen, fresh, strict=True)]) > SLOWER:
        return (
            f"in a row, a call takes {new:.3g} s where a few elements of its inputs have changed and {old:.3g} s where "
            "they have not: it keeps answers"
        )
    return _left_out(candidate, call_s, replace(question, lead=1, count=calls, contents=same)) if apart else None


def _told(failure: Failure) -> str | None:
    """What a failure in a row says of the kernel; None where the clock doesn't fit, which is not the kernel's."""
    return None if isinstance(failure, Unfit) else f"after timing: {failure.reason}"


def _most_apart(call_s: float) -> float:
    """What a call may take in a graph where another kernel comes before each, of one that takes so long in a row."""
    return APART * call_s + APART_S


def _left_out(candidate: Candidate, call_s: float, question: Sample) -> str | None:
    """Why calls are held to leave out work where nothing is written between them; None where nothing speaks for it.

    The time that is claimed is of another moment, and somebody may use the device now: rows with and without a write
    (`question`) before each call are taken in turn. Where those without take longer than is claimed too, they say
    nothing of each other, and both are asked again after a pause.
    """
    # as it was timed: one call after the other, in one graph
    row = Sample(launch=candidate.launch, timer="cuda_graph", cache="warm", batch=question.count)
    now = old = alone = 0.0
    for at in range(APART_TRIES):
        if at:
            time.sleep(PAUSE_S)
        between: list[tuple[float, float, float]] = []
        while len(between) < APART_LOOKS:
            written, timed = candidate.ask(question), candidate.ask(row)
            if isinstance(written, Failure):
                return _told(written)
            if isinstance(timed, Failure):
                return _told(timed)
            took = max(1e-9, written.samples[0] - written.lead_s)
            between.append((took, timed.samples[0], written.lead_s))
        old, now, alone = (median(times) for times in zip(*between, strict=True))
        if old <= _most_apart(call_s):
            return None
        if now > _most_apart(call_s):
            continue
        if surely_beyond([took / _most_apart(max(call_s, timed)) for took, timed, _ in between]) <= 1.0:
            return None
        return (
            f"a call takes {old:.3g} s where something else is written between two calls ({alone:.2g} s, left out), "
            f"{now:.3g} s in a row without, taken in turn, and {call_s:.3g} s are claimed for each of those that "
            "follow at once: some of them do nothing"
        )
    return (
        f"not timed: {call_s:.3g} s were measured for a call, and {now:.3g} s a moment later, in the same kind of row, "
        f"{APART_TRIES} times within {APART_TRIES * PAUSE_S:.0f} s: something else uses the device, or the kernel does "
        "less while it is timed. Run it again when nothing else runs there"
    )


def _slower(
    candidate: Candidate, call_s: float, first: PreparedCase, question: Sample, draw: random.Random
) -> str | None:
    """Why calls on changed content are held to take longer than those on the same; None where nothing speaks for it."""
    seen: list[float] = []
    fresh: list[float] = []
    looks = LOOKS if call_s < ROW_S else LOOKS[:1]
    for samples in looks:
        count = samples - len(seen) - len(fresh)
        # as many changes as repetitions, in an order of their own
        changes = [0, 1] * (count // 2)
        draw.shuffle(changes)
        plan, now = [0], 0
        for change in changes:
            now ^= change
            plan.append(now)
        first.reset()
        answer = candidate.ask(replace(question, lead=3, count=len(plan), contents=bytes(plan)))
        if isinstance(answer, Failure):
            return _told(answer)
        for change, took in zip(changes, answer.samples[1:], strict=True):
            (fresh if change else seen).append(took)
        new, old = median(fresh), median(seen)
        if new <= INNOCENT * old or new - old <= GRAIN_S:
            return None
    if surely_beyond([b / a for a, b in zip(seen, fresh, strict=True)]) <= SLOWER:
        return None
    return (
        f"in a row, a call takes {new:.3g} s where a few elements of its inputs have changed and {old:.3g} s where "
        "they have not: it keeps answers"
    )


def differing(first: PreparedCase, second: PreparedCase) -> Iterator[tuple[int, bytes, bytes]]:
    """The elements of the inputs by which two contents of one memory differ: where they lie in it, and both values. At
    most one more than MOST_PLACES.
    """
    count = 0
    for slot in first.arena.slots:
        if slot.role != "input" or not slot.span_bytes:
            continue
        size = DTYPES[slot.dtype].itemsize
        whole = slice(slot.offset, slot.offset + slot.span_bytes)
        one, other = (content.pristine[whole].view(-1, size) for content in (first, second))
        for at in (one != other).any(dim=1).nonzero().flatten().tolist():
            yield slot.offset + at * size, bytes(one[at].tolist()), bytes(other[at].tolist())
            count += 1
            if count > MOST_PLACES:
                return


def _in_place_of(first: PreparedCase, second: PreparedCase) -> PreparedCase:
    """The second content with what the first has around its tensors: what the memory is after the places are written.
    Made once for all candidates, and where the contents lie: not through the memory, by copies of it in each audit.
    """
    if second.in_first is None:
        pristine = first.pristine.clone()
        for slot in first.arena.slots:
            if slot.role == "input":
                whole = slice(slot.offset, slot.offset + slot.span_bytes)
                pristine[whole] = second.pristine[whole]
        second.in_first = replace(second, pristine=pristine)
    return second.in_first
