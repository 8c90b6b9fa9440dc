"""What is asked of a launch that has just been timed, before its time is believed."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from opforge.core.definition.operator import Operator
from opforge.core.evidence.timing import Timing, Untimed
from opforge.core.evidence.verdict import Broken, Checked, Mismatch, Verdict
from opforge.core.language import spans
from opforge.runner.wire.messages import OTHER, SAME, DeviceWork, Failure, Replay, Run, Sample, Samples, Unfit, Work
from opforge.timing import Candidate, parent_clock
from opforge.timing.parent_clock import TimedRequest
from opforge.trial.baselines import tolerated
from opforge.trial.in_row import in_row
from opforge.trial.setting import Setting
from opforge.trial.unseen_content import CALLS, FEW_LOOKS, LOOKS, by_calls, remembered
from opforge.trial.whole_content import changing, whole
from opforge.verify import PreparedCase, judge

CLAIMED_S = 0.05
"""Five times SLACK_S: a claim that is 2.2 times too small is seen, (2 * 50 ms + 10 ms) / 50 ms."""
TASTE = 256
"""Calls of the first look where CLAIMED_S would be more: a time of 1 ns that is claimed for calls of 1 ms costs 0.3 s,
not 50,000 s.
"""
MANY = 32
"""A kernel that leaves out one call in 32 or fewer launches fewer kernels than calls; a trace of 32 calls stays short
beside the second that the profiler takes to start.
"""
SAME_WORK = 0.25
"""The part of a single call's work that a call in a row does at least. It finds its inputs in the cache and clocks
raised, so it may honestly be faster; on an H200 reads from a warm cache take 0.6 of the time (8.3 us for 13.8 us,
docs/timing.md). A quarter leaves more than a factor of two to that.
"""
CLAIMED_WORK = 0.5
"""The same factor of two as DISAGREEMENT: a device that is busy twice as long as is claimed."""
GRAPH_S = 15e-6
"""More than the launch of a graph takes between two events: what a single call in a graph has to bear alone."""
SAMPLE_S = 1e-3
"""The least duration of a sample: what an event takes of it, a few microseconds, is below a hundredth."""
REQUESTS = 16
"""Eight pairs of a short and a long request (timing.parent_clock)."""
GROWTH = (0.02, 0.05, 0.15)
"""The longest request of each look, seconds: a next one is taken while calls seem to take longer than is claimed."""
SUSTAINED = 0.35
"""How much longer than the median that is told a call takes by this process's clock in requests of any length. A device
that gets warm in long ones slows down by less; of samples that take 55 us or 105 by turns, since work is waited for in
some of them only, the sum is right, and the median is half of it.
"""
EMPTY_S = 20e-9
"""Less than the call of an empty function, and held against nobody: a graph without a kernel takes 0.7 ns a call by one
clock and 2 by the other.
"""
SLACK_S = 0.01
"""What a request takes besides its calls: the way there and back, and a wait for a processor of two of the
scheduler's ticks of 4 ms.
"""
DISAGREEMENT = 2.0
"""One process beside a worker on the same processor takes half of it, and doubles the time by the parent's clock."""
LONGER = (1, 1, 2, 4, 8, 16)
"""How many times as many calls each further look has: an honest kernel is refused only where all of them are disturbed.
What a request waits for a processor does not grow with its calls, and weighs less in the longer ones.
"""
REST_S = 0.02
"""Between two looks: longer than a scheduler lets one of several processes run at a stretch."""
AHEAD = 512
"""Half of the thousand launches or so that a stream takes before the caller waits: the events cannot see the wait."""
ROUNDS = 7
"""Three disturbed rounds of seven do not move the median."""
SLOW_S = 0.02
"""From here eight pairs of calls take more than 0.32 s, as long as the measurement that they are to confirm."""
LARGE = 1 << 27
"""Bytes of memory from which the writing of inputs to a device, before each call, takes much longer than the
calls.
"""
KEPT = (
    "right before it was timed and wrong after, on new inputs: an answer that was kept, or work that goes on after the "
    "call?"
)
OUTRUN = 2.0
"""From so many times the best time on, an audit is brief: the whole one is some 120 calls, 42 s of a naive product that
takes 0.35 s (an H100).
"""
LONG_S = 0.1
"""A baseline is audited whole, since ratios stand on it, but where each call takes so long: 60 s went into PyTorch's
float16 product on a CPU without float16 arithmetic (0.8 s a call). No clock is too coarse for that.
"""
BRIEFLY = f"audited briefly: more than {OUTRUN:g} times as long as the fastest that stands here"
GRAIN_S = 3e-6
"""Some steps of the clock that a trace of a device's work is made with."""


@spans.spanned(
    lambda candidate, timing, unseen, operator, isolation, far=None, brief=False, timed=None: (
        "audit, brief" if brief else "audit",
        f"{operator.name} {candidate.name} {unseen[-1].case.name} {unseen[-1].dtype}",
        "",
    )
)
def audit(
    candidate: Candidate,
    timing: Timing,
    unseen: Sequence[PreparedCase],
    operator: Operator,
    isolation: str,
    far: PreparedCase | None = None,
    brief: bool = False,
    timed: PreparedCase | None = None,
) -> Verdict | None:
    """The failure, if any.

    timed    the content that was timed; None where no turns like those of the time are asked for
    brief    of a time that nobody would choose (see `outrun`): what it leaves is judged as ever; whether it could have
             been made to look shorter is asked by few calls
    unseen   the case that was timed, with other contents of the same memory, the second the twin of the first. Two
             calls in a row on different contents: a kernel that computes in every second call only is wrong in one of
             them, and one that knows inputs by some of their elements takes the second for the first
    far      the case with values that no normal number reaches (trial.far_values)
    """
    last = unseen[-1]
    if far is not None:
        told = f"at this shape right on normal values, and wrong on others ({far.case.distribution}):"
        failure = still_right(candidate, far, operator, isolation, told=told)
        if failure is not None and not (isinstance(failure, Mismatch) and candidate.inaccurate):
            return failure
    for number, again in enumerate(unseen):
        if number:
            # wherever its next result may be made, an answer is
            candidate.ask(Sample(launch=candidate.launch, timer=by_calls(candidate), cache="warm", lead=CALLS))
        failure = still_right(candidate, again, operator, isolation, kept=number > 0)
        if failure is not None:
            return failure
    failure = None if brief else in_row(candidate, timing.median_s, unseen, operator, isolation, timing.cache)
    if failure is None and timed is not None and not brief:
        failure = whole(candidate, timing, unseen, operator, isolation, timed)
    if failure is not None:
        return failure
    stale = replayed(candidate, unseen[0], operator, isolation)
    if isinstance(stale, Mismatch):
        return replace(
            stale,
            cause="right when it is called and wrong when its CUDA graph is replayed on new inputs: what was timed "
            f"is not the work; {stale.cause}",
        )
    if stale is not None:
        return stale
    if brief:
        few = understated(candidate, timing)
        return Broken(case=last.case, dtype=last.dtype, reason=few, isolation=isolation) if few else None
    reason = (
        conserved(candidate, timing)
        or undivided(candidate, timing)
        or understated(candidate, timing)
        or outgrown(candidate, timing)
    )
    if not reason and not (timed is not None and changing(candidate, last.arena, operator)):
        few_looks = timing.median_s >= SLOW_S or last.arena.size >= LARGE
        reason = remembered(candidate, last, FEW_LOOKS if few_looks else LOOKS)
    return Broken(case=last.case, dtype=last.dtype, reason=reason, isolation=isolation) if reason else None


def still_right(
    candidate: Candidate,
    again: PreparedCase,
    operator: Operator,
    isolation: str,
    *,
    kept: bool = False,
    told: str = KEPT,
) -> Verdict | None:
    """The failure, if any, of a launch that was timed, on other content of its memory.

    told     what is said of a Mismatch, before its cause
    kept     the outputs hold what the last call left there. Else they are NaN again: a call that does nothing because
             an answer is there leaves them so. After its twin a call that looks at some of them finds them right
    """
    gaps = [slot.name for slot in again.arena.slots if slot.role == "output" and not slot.dense]
    left = {name: again.arena.tensor(name).clone() for name in gaps} if kept else {}
    again.reset(outputs=not kept)
    for name, tensor in left.items():
        again.arena.tensor(name).copy_(tensor)
    answer = candidate.ask(Run(launch=candidate.launch, written=SAME if kept else OTHER))
    if isinstance(answer, Failure):
        return Broken(case=again.case, dtype=again.dtype, reason=f"after timing: {answer.reason}", isolation=isolation)
    outcome = judge(again, operator, isolation, measured=False)
    if isinstance(outcome, Checked) or tolerated(candidate, outcome, again):
        return None
    if isinstance(outcome, Mismatch):
        return replace(outcome, cause=f"{told} {outcome.cause}")
    return outcome


def outrun(timing: Timing | Untimed, best_s: float, *, baseline: bool = False) -> bool:
    """Whether a time is so far behind one that stands, of the same call on the same terms, that nobody would choose its
    kernel here. It may then be a lower bound, and no more: a kernel that keeps answers only looks faster than it is.
    """
    least_s = max(OUTRUN * best_s, LONG_S if baseline else 0.0)
    return isinstance(timing, Timing) and timing.median_s > least_s


def believed(
    setting: Setting,
    candidate: Candidate,
    timing: Timing | Untimed,
    unseen: Sequence[PreparedCase],
    far: PreparedCase | None = None,
    brief: bool = False,
) -> Verdict:
    """What stands beside a time: the candidate's proof, or what speaks against it. `unseen`, `far` and `brief` as
    `audit` takes them.
    """
    if isinstance(timing, Untimed):
        case = setting.prepared.case
        return Broken(
            case=case, dtype=setting.prepared.dtype, reason=f"not timed: {timing.reason}", isolation=setting.isolation
        )
    return (
        audit(candidate, timing, unseen, setting.cases.operator, setting.isolation, far, brief, setting.prepared)
        or candidate.proof
    )


def unseen_contents(setting: Setting) -> list[PreparedCase]:
    """The workload with two other contents of its memory, for the audits of all that were timed on it: values that
    nobody has seen, and the same with some in each other's places.
    """
    return list(setting.cases.twins(setting.prepared))


@spans.spanned(lambda candidate, timing: ("audit: understated", "", ""))
def understated(candidate: Candidate, timing: Timing) -> str | None:
    """Whether calls take longer by this process's clock than the worker says; None when they agree."""
    each = max(timing.median_s, 1e-8)
    # on a device: events around the launches, since capturing and tracing take time of their own. Work on a stream that
    # the events do not see is waited for by this process
    timer = by_calls(candidate)

    def ask(batch: int) -> tuple[Samples | Failure, float]:
        started = time.perf_counter()
        answer = candidate.ask(Sample(launch=candidate.launch, timer=timer, cache="warm", batch=batch))
        return answer, time.perf_counter() - started

    if CLAIMED_S > TASTE * each:
        # a claim that is far too small must not become millions of calls
        each = max(each, ask(TASTE)[1] / TASTE)
    batch = max(1, math.ceil(CLAIMED_S / each))
    # few calls too: a stream takes about a thousand launches ahead, then the caller waits for it, and the events see
    # the wait
    for calls in sorted({batch, min(batch, AHEAD)}):
        for look, longer in enumerate(LONGER):
            if look:
                time.sleep(REST_S)
            # few calls stay few
            now = calls * (longer if calls > AHEAD else min(longer, AHEAD // calls))
            answer, took = ask(now)
            if isinstance(answer, Unfit):
                return None  # events cannot time this; what did was compared with other clocks while it was chosen
            if isinstance(answer, Failure):
                return f"after timing: {answer.reason}"
            claimed = answer.samples[0] * answer.batch
            if took <= DISAGREEMENT * claimed + SLACK_S:
                break
        else:
            return f"{now} calls take {took:.3g} s by this process's clock and {claimed:.3g} s by the worker's"
    return None


@spans.spanned(lambda candidate, timing: ("audit: outgrown", "", ""))
def outgrown(candidate: Candidate, timing: Timing) -> str | None:
    """Whether requests to a device grow by more, by this process's clock, than the worker's clock says its calls take:
    by 10 %, where `understated` leaves a factor of two; or than the median that is told, by SUSTAINED. None when they
    do not: where any look says so. Where each says that they seem to, the last, of the longest requests, has to be sure
    of it.
    """
    if candidate.timer == "host":
        return None  # what was measured was held against this process's clock, request by request
    timer = "cuda_graph" if candidate.timer == "cuda_graph" else "cuda_event"
    batch = max(candidate.batch, math.ceil(SAMPLE_S / max(timing.median_s, 1e-7)))
    draw = random.SystemRandom()
    question = Sample(launch=candidate.launch, timer=timer, cache="warm", batch=batch)
    told: list[str] = []
    for most in GROWTH:
        asked: list[TimedRequest] = []
        samples: list[float] = []
        # the first is not counted: a graph is captured in it
        for number in range(REQUESTS + 1):
            count = draw.randint(1, max(2, int(most / max(batch * timing.median_s, SAMPLE_S))))
            started = time.perf_counter()
            answer = candidate.ask(replace(question, count=count))
            wall_s = time.perf_counter() - started
            if isinstance(answer, Failure):
                return None if isinstance(answer, Unfit) else f"after timing: {answer.reason}"
            if number:
                claimed_s = sum(answer.samples) * answer.batch
                asked.append(TimedRequest(calls=count * answer.batch, claimed_s=claimed_s, wall_s=wall_s))
                samples += answer.samples
        by_median = [replace(item, claimed_s=item.calls * timing.median_s) for item in asked]
        claims = ((samples, asked, parent_clock.AGREEMENT), ([timing.median_s], by_median, SUSTAINED))
        if not any(parent_clock.understated(*claim, EMPTY_S, surely=False) for claim in claims):
            return None
        told = [words for claim in claims if (words := parent_clock.understated(*claim, EMPTY_S))]
    return told[0] if told else None


@spans.spanned(lambda candidate, prepared, operator, isolation: ("audit: replayed", "", ""))
def replayed(
    candidate: Candidate, prepared: PreparedCase, operator: Operator, isolation: str
) -> Mismatch | Broken | None:
    """The failure of a captured call that is replayed on inputs it has not seen; None when it is right, or no graph had
    a part in the time.

    prepared   other content than that of the last run: what was captured without being computed is not right for it by
               chance
    """
    if "cuda_graph" not in candidate.seen_by:
        return None
    prepared.reset()
    answer = candidate.ask(Replay(launch=candidate.launch))
    if isinstance(answer, Unfit):
        return None
    if isinstance(answer, Failure):
        return Broken(
            case=prepared.case,
            dtype=prepared.dtype,
            reason=f"after timing, replayed as a CUDA graph: {answer.reason}",
            isolation=isolation,
        )
    outcome = judge(prepared, operator, isolation, measured=False)
    return None if isinstance(outcome, Checked) or tolerated(candidate, outcome, prepared) else outcome


@spans.spanned(lambda candidate, timing: ("audit: conserved", "", ""))
def conserved(candidate: Candidate, timing: Timing) -> str | None:
    """Whether a device does as much for each of many calls in a row as it does for one by itself, and the claimed time
    is not shorter than that work; None when it does, or nothing can see it.

    Asked where no graph was the clock: what a graph holds is shown by its replay. The profiler takes seconds to start.
    """
    if candidate.timer not in ("cuda_event", "cupti"):
        return None
    *single, many = (candidate.ask(DeviceWork(launch=candidate.launch, count=count)) for count in (1, 1, 1, MANY))
    if any(isinstance(answer, Unfit) for answer in single):
        return None
    failed = next(
        (answer for answer in (*single, many) if isinstance(answer, Failure) and not isinstance(answer, Unfit)), None
    )
    if failed is not None:
        return f"after timing: {failed.reason}"
    # where nothing at all is seen of many calls, while each alone was seen, the work is left out
    pieces, busy = (many.pieces / MANY, many.busy / MANY) if isinstance(many, Work) else (0.0, 0.0)
    seen = [answer for answer in single if isinstance(answer, Work)]
    alone, alone_s = min(work.pieces for work in seen), median(work.busy for work in seen)
    if pieces < alone or busy < SAME_WORK * alone_s:
        told = (
            f"{pieces:.3g} kernels and {busy:.3g} s a call in a row of {MANY}, {alone} and {alone_s:.3g} s in a "
            "call by itself"
        )
        return (
            f"the device does less for a call among others than for one alone: {told}; work is left out, or goes "
            "on after the call"
        )
    if timing.median_s < CLAIMED_WORK * busy - GRAIN_S:
        return f"the device is busy for {busy:.3g} s with each call, and {timing.median_s:.3g} s are claimed"
    return None


@spans.spanned(lambda candidate, timing: ("audit: undivided", "", ""))
def undivided(candidate: Candidate, timing: Timing) -> str | None:
    """Whether a graph of one call, long after any other, takes about what is claimed for each of many that follow each
    other at once; None when it does, or no graph was the clock. A kernel may count its calls while they are captured,
    or look at the device's clock when they run.
    """
    if candidate.timer != "cuda_graph":
        return None
    answer = candidate.ask(Sample(launch=candidate.launch, timer="cuda_graph", cache="warm", count=ROUNDS, apart=True))
    if isinstance(answer, Unfit):
        return None
    if isinstance(answer, Failure):
        return f"after timing: {answer.reason}"
    alone = min(answer.samples)
    if alone <= DISAGREEMENT * timing.median_s + GRAPH_S:
        return None
    return (
        f"a CUDA graph of one call takes {alone:.3g} s by itself, and {timing.median_s:.3g} s are claimed for "
        "each of those timed in a row: some of them do nothing"
    )
