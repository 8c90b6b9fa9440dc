"""What is asked of a launch that has just been timed, before its time is believed."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from opforge.core.operator import Operator
from opforge.core.timing import Timing
from opforge.core.verdict import Broken, Checked, Mismatch, Verdict
from opforge.timing import Contestant
from opforge.verdicts import Prepared, judge

CONTENTS = 2
CLAIMED_S = 0.05
TASTE = 256
MANY = 32
SAME_WORK = 0.25
CLAIMED_WORK = 0.5
GRAPH_S = 15e-6
"""More than the launch of a graph takes between two events: what a single call in a graph has to bear alone."""
SLACK_S = 0.01
DISAGREEMENT = 2.0
TRIES = 3
AHEAD = 512
ROUNDS = 7
FEW_ROUNDS = 3
SLOW_S = 0.02
LARGE = 1 << 27
"""Bytes of memory from which the writing of inputs to a device, before each round, takes much longer than the rounds."""
FASTER_WHEN_SEEN = 2.5
GRAIN_S = 30e-6


def audit(contestant: Contestant, timing: Timing, unseen: Sequence[Prepared], operator: Operator, isolation: str) -> Verdict | None:
    """The failure, if any.

    unseen   the case that was timed, with CONTENTS other contents of the same memory. Two calls in a row on different
             contents: a kernel that computes in every n-th call only is wrong in one of them
    """
    last = unseen[-1]

    def broken(reason: str) -> Broken:
        return Broken(case=last.case, dtype=last.dtype, reason=reason, isolation=isolation)

    for again in unseen:
        # outputs are NaN again before each: a call that does nothing because the answer is already there leaves them so
        again.reset()
        answer = contestant.ask({"do": "run", "launch": contestant.launch})
        if answer["status"] != "ok":
            return broken(f"after timing: {answer.get('reason')}")
        found = judge(again, operator, isolation)
        if isinstance(found, Mismatch):
            return replace(found, cause=f"right before it was timed and wrong after, on new inputs: an answer that was kept, or work that goes on after the call? {found.cause}")
        if not isinstance(found, Checked):
            return found
    stale = replayed(contestant, unseen[0], operator, isolation)
    if isinstance(stale, Mismatch):
        return replace(stale, cause=f"right when it is called and wrong when its CUDA graph is replayed on new inputs: what was timed is not the work; {stale.cause}")
    if stale is not None:
        return stale
    words = (
        conserved(contestant, timing)
        or undivided(contestant, timing)
        or understated(contestant, timing)
        or remembered(contestant, last, ROUNDS if timing.median_s < SLOW_S and last.arena.size < LARGE else FEW_ROUNDS)
    )
    return broken(words) if words else None


def understated(contestant: Contestant, timing: Timing) -> str | None:
    """Whether calls take longer by this process's clock than the worker says; None when they agree."""
    each = max(timing.median_s, 1e-8)
    # on a device: events around the launches, since capturing and tracing take time of their own. Work on a stream that the
    # events do not see is waited for by this process
    timer = "host" if contestant.timer == "host" else "cuda_event"

    def ask(batch: int) -> tuple[Mapping[str, Any], float]:
        started = time.perf_counter()
        answer = contestant.ask({"do": "sample", "launch": contestant.launch, "batch": batch, "count": 1, "timer": timer, "cache": "warm"})
        return answer, time.perf_counter() - started

    if CLAIMED_S > TASTE * each:
        # a claim that is far too small must not become millions of calls
        each = max(each, ask(TASTE)[1] / TASTE)
    batch = max(1, math.ceil(CLAIMED_S / each))
    # few calls too: a stream takes about a thousand launches ahead, then the caller waits for it, and the events see the wait
    for calls in sorted({batch, min(batch, AHEAD)}):
        for _ in range(TRIES):
            answer, took = ask(calls)
            if answer["status"] == "unfit":
                return None  # events cannot time this; what did was compared with other clocks while it was chosen
            if answer["status"] != "ok":
                return f"after timing: {answer.get('reason')}"
            claimed = answer["samples"][0] * answer.get("batch", calls)
            if took <= DISAGREEMENT * claimed + SLACK_S:
                break
        else:
            return f"{calls} calls take {took:.3g} s by this process's clock and {claimed:.3g} s by the worker's"
    return None


def replayed(contestant: Contestant, prepared: Prepared, operator: Operator, isolation: str) -> Mismatch | Broken | None:
    """The failure of a captured call that is replayed on inputs it has not seen; None when it is right, or no graph had a part in the time.

    prepared   other content than that of the last run: what was captured without being computed is not right for it by chance
    """
    if "cuda_graph" not in contestant.seen_by:
        return None
    prepared.reset()
    answer = contestant.ask({"do": "replay", "launch": contestant.launch})
    if answer["status"] == "unfit":
        return None
    if answer["status"] != "ok":
        return Broken(case=prepared.case, dtype=prepared.dtype, reason=f"after timing, replayed as a CUDA graph: {answer.get('reason')}", isolation=isolation)
    found = judge(prepared, operator, isolation)
    return None if isinstance(found, Checked) else found


def conserved(contestant: Contestant, timing: Timing) -> str | None:
    """Whether a device does as much for each of many calls in a row as it does for one by itself, and the claimed time is
    not shorter than that work; None when it does, or nothing can see it.

    Asked where no graph was the clock: what a graph holds is shown by its replay. The profiler takes seconds to start.
    """
    if contestant.timer not in ("cuda_event", "cupti"):
        return None
    answers = [contestant.ask({"do": "work", "launch": contestant.launch, "count": count}) for count in (1, 1, 1, MANY)]
    if any(answer["status"] == "unfit" for answer in answers[:3]):
        return None
    failed = next((answer for answer in answers if answer["status"] == "failed"), None)
    if failed is not None:
        return f"after timing: {failed.get('reason')}"
    # where nothing at all is seen of many calls, while each alone was seen, the work is left out
    pieces, busy = answers[3].get("pieces", 0) / MANY, answers[3].get("busy", 0.0) / MANY
    alone, alone_s = min(answer["pieces"] for answer in answers[:3]), median(answer["busy"] for answer in answers[:3])
    if pieces < alone or busy < SAME_WORK * alone_s:
        told = f"{pieces:.3g} kernels and {busy:.3g} s a call in a row of {MANY}, {alone} and {alone_s:.3g} s in a call by itself"
        return f"the device does less for a call among others than for one alone: {told}; work is left out, or goes on after the call"
    if timing.median_s < CLAIMED_WORK * busy - GRAIN_S / 10:
        return f"the device is busy for {busy:.3g} s with each call, and {timing.median_s:.3g} s are claimed"
    return None


def undivided(contestant: Contestant, timing: Timing) -> str | None:
    """Whether a graph of one call, long after any other, takes about what is claimed for each of many that follow each other at once; None when
    it does, or no graph was the clock. A kernel may count its calls while they are captured, or look at the device's clock when they run."""
    if contestant.timer != "cuda_graph":
        return None
    answer = contestant.ask({"do": "sample", "launch": contestant.launch, "batch": 1, "count": ROUNDS, "timer": "cuda_graph", "cache": "warm", "apart": True})
    if answer["status"] == "unfit":
        return None
    if answer["status"] != "ok":
        return f"after timing: {answer.get('reason')}"
    alone = min(answer["samples"])
    if alone <= DISAGREEMENT * timing.median_s + GRAPH_S:
        return None
    return f"a CUDA graph of one call takes {alone:.3g} s by itself, and {timing.median_s:.3g} s are claimed for each of those timed in a row: some of them do nothing"


def remembered(contestant: Contestant, prepared: Prepared, rounds: int = ROUNDS) -> str | None:
    """Whether a call on inputs that changed a little takes much longer than the same call again; None when it does not."""
    for _ in range(TRIES):
        seen: list[float] = []
        fresh: list[float] = []
        for _ in range(rounds):
            # the same is done before either: a pause, and a write into each input, cost a kernel on several threads its warmth
            for times, other in ((seen, False), (fresh, True)):
                _write(prepared, other)
                message = {"do": "sample", "launch": contestant.launch, "batch": 1, "count": 1, "timer": "host" if contestant.timer == "host" else "cuda_event", "cache": "warm"}
                answer = contestant.ask({**message, "upload": True})
                if answer["status"] == "unfit":
                    return None
                if answer["status"] != "ok":
                    return f"after timing: {answer.get('reason')}"
                times.append(answer["samples"][0])
        new, old = median(fresh), median(seen)
        if new <= FASTER_WHEN_SEEN * old or new - old <= GRAIN_S:
            return None
    return f"a call takes {new:.3g} s on inputs it has not seen and {old:.3g} s on the same inputs again: it keeps answers"


def _write(prepared: Prepared, other: bool) -> None:
    """Write one element of each floating-point input: what stands there, or `other`, a value of the same kind (the negative of it, or 1)."""
    for tensor in prepared.arena.tensors("input").values():
        if tensor.numel() and tensor.dtype.is_floating_point:
            place = tuple(random.SystemRandom().randrange(extent) for extent in tensor.shape)
            value = tensor[place].clone()
            # by way of float32: PyTorch negates no float8
            tensor[place] = value if not other else -value.float() if bool(value.float()) else 1
