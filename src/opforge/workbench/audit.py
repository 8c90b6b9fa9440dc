"""What is asked of a launch that has just been timed, before its time is believed."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from opforge.core.operator import Operator
from opforge.core.timing import Timing
from opforge.core.verdict import Broken, Checked, Mismatch, Verdict
from opforge.timing import Contestant
from opforge.verdicts import Prepared, judge

CONTENTS = 2
CLAIMED_S = 0.05
SLACK_S = 0.01
DISAGREEMENT = 2.0
TRIES = 3
ROUNDS = 7
FEW_ROUNDS = 3
SLOW_S = 0.02
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
    words = understated(contestant, timing) or remembered(contestant, last, ROUNDS if timing.median_s < SLOW_S else FEW_ROUNDS)
    return broken(words) if words else None


def understated(contestant: Contestant, timing: Timing) -> str | None:
    """Whether calls take longer by this process's clock than the worker says; None when they agree."""
    batch = max(1, math.ceil(CLAIMED_S / max(timing.median_s, 1e-8)))
    # on a device: events around the launches, since capturing and tracing take time of their own. Work on a stream that the
    # events do not see is waited for by this process
    timer = "host" if contestant.timer == "host" else "cuda_event"
    for _ in range(TRIES):
        started = time.perf_counter()
        answer = contestant.ask({"do": "sample", "launch": contestant.launch, "batch": batch, "count": 1, "timer": timer, "cache": "warm"})
        took = time.perf_counter() - started
        if answer["status"] == "unfit":
            return None  # events cannot time this; what did was compared with other clocks while it was chosen
        if answer["status"] != "ok":
            return f"after timing: {answer.get('reason')}"
        claimed = answer["samples"][0] * answer.get("batch", batch)
        if took <= DISAGREEMENT * claimed + SLACK_S:
            return None
    return f"{batch} calls take {took:.3g} s by this process's clock and {claimed:.3g} s by the worker's"


def remembered(contestant: Contestant, prepared: Prepared, rounds: int = ROUNDS) -> str | None:
    """Whether a call on inputs that changed a little takes much longer than the same call again; None when it does not."""
    for _ in range(TRIES):
        seen: list[float] = []
        fresh: list[float] = []
        for _ in range(rounds):
            _change(prepared)
            for times in (fresh, seen):
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


def _change(prepared: Prepared) -> None:
    """Give one element of each floating-point input another value of the same kind: the negative of it, or of its neighbour."""
    for tensor in prepared.arena.tensors("input").values():
        if tensor.numel() and tensor.dtype.is_floating_point:
            place = tuple(random.SystemRandom().randrange(extent) for extent in tensor.shape)
            value = -tensor[place]
            tensor[place] = value if bool(value) else 1
