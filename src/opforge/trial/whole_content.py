"""Whether calls do their work where inputs change as a whole between them, by the host's clock.

A request is like one of those that the time was taken by: calls that are not timed, on content that nobody has seen,
then samples of single calls at once after them. Before some of these nothing happens; before some a pause, as long as
writing takes; before some what stands there is written once more; and before the last ones content that is new: that of
the request's beginning with its rows in other places, of each input by a number of rows of its own. The sampler writes
it, in the same loop that the measurement's calls are made in, and nobody who is called is told. An honest kernel takes
as long for new content as for the same that was written once more, as long after a pause as without, and as long here
as is claimed. The last content is as it was at first, and what the last call makes of it is judged.

trial.in_row changes a few elements: who knows inputs by some of theirs is wrong there. Who compares all of them, or
keeps several answers, is right and takes longer here.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from opforge.core.definition.operator import Operator
from opforge.core.evidence.timing import Round, Timing
from opforge.core.evidence.verdict import Broken, Checked, Mismatch, Verdict
from opforge.core.language import spans
from opforge.runner.wire.messages import AGAIN, NEW, OTHER, PAUSE, UNTOUCHED, Failure, Sample, Samples
from opforge.runner.worker.arena import Arena
from opforge.timing import Candidate
from opforge.timing.own_content import TURNED_BY, on_its_own
from opforge.trial.baselines import tolerated
from opforge.trial.content_spans import Spans, spans_of
from opforge.trial.in_row import WORKS_ON
from opforge.trial.unseen_content import GRAIN_S, INNOCENT, surely_beyond
from opforge.verify import PreparedCase, judge

LOOKS = (2, 4, 8)
"""Requests at each look."""
EACH = 4
"""Samples of each kind in a request; of calls that take SLOW_S, half of them."""
SLOW_S = 0.02
SLOWER = 1.3
"""What is held against a kernel, surely (SURE, by the bootstrap): branches of an honest one may be foreseen by a
processor that has met the same values before."""
AT_ONCE, WAKE_S = 1.5, 60e-6
"""How much longer a call may take after a pause: threads that have gone to sleep meanwhile are woken."""
CLAIMED, TRIES, REST_S = 1.5, 7, 0.25
"""How much longer than claimed a call may take in turns like those that the time was taken by; so many pairs of turns,
after a rest each, before anybody is accused. One that takes as long as is claimed is enough; where others were seen to
use the processors nobody is."""


def changing(candidate: Candidate, arena: Arena, operator: Operator) -> Spans:
    """The tensors that change as a whole where `whole` asks this candidate; () where it doesn't: by a device's clocks,
    and where a call overwrites an input, which is other content for the next one.
    """
    if candidate.timer != "host" or any(slot.becomes for slot in arena.slots):
        return ()
    return spans_of(arena, candidate.terms, operator)


def whole(
    candidate: Candidate,
    timing: Timing,
    unseen: Sequence[PreparedCase],
    operator: Operator,
    isolation: str,
    timed: PreparedCase,
) -> Verdict | None:
    """The failure, if any, of a candidate that was `timed` on this content. None also where nothing can change as a
    whole.
    """
    first = unseen[0]
    tensors = changing(candidate, first.arena, operator)
    if not tensors:
        return None
    return _Asked(candidate, timing.median_s, first, timed, tensors, operator, isolation).failure()


class _Asked:
    """Requests to one candidate, and what was seen in them by kind of sample."""

    def __init__(
        self,
        candidate: Candidate,
        call_s: float,
        first: PreparedCase,
        timed: PreparedCase,
        tensors: Spans,
        operator: Operator,
        isolation: str,
    ) -> None:
        self.candidate, self.call_s, self.first, self.timed = candidate, call_s, first, timed
        self.tensors, self.operator, self.isolation = tensors, operator, isolation
        self.draw = random.SystemRandom()
        self.seen: dict[int, list[float]] = {kind: [] for kind in (UNTOUCHED, PAUSE, AGAIN, NEW)}

    @spans.spanned(lambda self: ("audit: whole content", "", ""))
    def failure(self) -> Verdict | None:
        """What speaks against the candidate."""
        for looks in LOOKS if self.call_s < SLOW_S else LOOKS[:2]:
            while len(self.seen[NEW]) < looks * self._each():
                failure = self._request()
                if failure is not None:
                    return failure
            if not self._slower(AGAIN, NEW) and not self._slower(UNTOUCHED, PAUSE):
                return self._beyond_the_claim()
        reason = self._surely()
        return self._broken(reason) if reason else self._beyond_the_claim()

    def _each(self) -> int:
        return EACH if self.call_s < SLOW_S else EACH // 2

    def _steps(self) -> list[tuple[int, int]]:
        """Before the lead, and before each sample: after new content none is asked that is not new, since who comes to
        trust it by and by would not have done so yet.
        """
        kinds = [*self._some(UNTOUCHED), *self._some(PAUSE), *self._some(AGAIN), *self._some(NEW)]
        steps = [(kind, self.draw.randrange(TURNED_BY)) for kind in (NEW, *kinds)]
        return [*steps[:-1], (NEW, 0)]

    def _some(self, kind: int) -> list[int]:
        return [kind] * self._each()

    def _request(self) -> Verdict | None:
        steps = self._steps()
        # as long as a turn: who comes to trust content in it does so before the first sample here
        mine = self.candidate
        lead = self.draw.randint(mine.lead, mine.lead + mine.lead // 2) + mine.batch * mine.stretch
        self.first.reset()
        question = Sample(launch=self.candidate.launch, timer="host", cache="warm", written=OTHER, lead=lead)
        answer = self.candidate.ask(
            replace(question, count=len(steps) - 1, collected=True, spans=self.tensors, steps=tuple(steps))
        )
        if isinstance(answer, Failure):
            return self._broken(f"after timing: {answer.reason}")
        for (kind, _), took in zip(steps[1:], answer.samples, strict=True):
            self.seen[kind].append(took)
        return self._judged(answer)

    def _judged(self, answer: Samples) -> Verdict | None:
        if answer.left != self.first.arena.checksum():
            return self._broken(WORKS_ON)
        outcome = judge(self.first, self.operator, self.isolation, measured=False)
        if isinstance(outcome, Checked) or tolerated(self.candidate, outcome, self.first):
            return None
        if isinstance(outcome, Mismatch):
            return replace(
                outcome,
                cause="right when it is called by itself and wrong in a row of calls, on inputs that change as a whole "
                f"between them: what was timed is not the work; {outcome.cause}",
            )
        return outcome

    def _slower(self, than: int, kind: int) -> bool:
        """Whether samples of a kind seem to be longer than those of another."""
        old, new = median(self.seen[than]), median(self.seen[kind])
        slack_s = WAKE_S if kind == PAUSE else GRAIN_S
        return new > (AT_ONCE if kind == PAUSE else INNOCENT) * old and new - old > slack_s

    def _surely(self) -> str | None:
        old, new = median(self.seen[AGAIN]), median(self.seen[NEW])
        if self._slower(AGAIN, NEW) and surely_beyond(self._ratios(AGAIN, NEW)) > SLOWER:
            return (
                f"in a row, a call takes {new:.3g} s on inputs it has not seen and {old:.3g} s where the same are "
                "written once more: it keeps answers"
            )
        at_once, apart = median(self.seen[UNTOUCHED]), median(self.seen[PAUSE])
        if self._slower(UNTOUCHED, PAUSE) and surely_beyond(self._ratios(UNTOUCHED, PAUSE)) > AT_ONCE:
            return (
                f"a call takes {apart:.3g} s after a pause and {at_once:.3g} s where it follows another at once: it "
                "leaves out work in a row of calls"
            )
        return None

    def _ratios(self, than: int, kind: int) -> list[float]:
        return [b / a for a, b in zip(self.seen[than], self.seen[kind], strict=True)]

    def _beyond_the_claim(self) -> Verdict | None:
        """What speaks against the time that is claimed, where calls on content of their own seem to take longer: turns
        like those that it was taken by, on such content and on that which was timed, by turns, all say so.
        """
        if median(self.seen[UNTOUCHED]) <= INNOCENT * self.call_s + GRAIN_S:
            return None
        own: list[float] = []
        timed: list[float] = []
        disturbed = False
        for attempt in range(TRIES):
            if attempt:
                time.sleep(REST_S)
            arms = [(own, self.first), (timed, self.timed)]
            self.draw.shuffle(arms)
            for times, content in arms:
                answer = self._turn(content)
                if isinstance(answer, Failure):
                    return self._broken(f"after timing: {answer.reason}")
                times.append(median(answer.samples))
                disturbed |= (
                    answer.seen is not None and Round(samples=len(answer.samples), **vars(answer.seen)).disturbed
                )
            if own[-1] <= INNOCENT * self.call_s + GRAIN_S:
                return None
        new, old = median(own), median(timed)
        if new - old > GRAIN_S and surely_beyond([b / a for a, b in zip(timed, own, strict=True)]) > SLOWER:
            return self._broken(
                f"a call takes {new:.3g} s on content of its own and {old:.3g} s on that which was timed, in turns "
                "taken by turns: it keeps answers"
            )
        if disturbed or min(own) <= CLAIMED * self.call_s + GRAIN_S:
            return None
        return self._broken(
            f"not timed: {self.call_s:.3g} s were measured for a call, and {min(own):.3g} s and more are, {TRIES} "
            "times, in turns like those: the kernel does less while it is timed, or something else uses the machine. "
            "Run it again when nothing else runs here"
        )

    def _turn(self, content: PreparedCase) -> Samples | Failure:
        """A turn as the time was taken by: on the content that was timed as it is, on other turned."""
        mine, draw = self.candidate, self.draw
        batch, count = draw.randint((mine.batch + 1) // 2, mine.batch), max(3, mine.stretch)
        lead = draw.randint(mine.lead, mine.lead + mine.lead // 2)
        content.reset()
        question = Sample(
            launch=mine.launch, timer="host", cache="warm", written=OTHER, lead=lead, batch=batch, count=count
        )
        return mine.ask(question if content is self.timed else on_its_own(question, self.tensors, draw))

    def _broken(self, reason: str) -> Broken:
        return Broken(case=self.first.case, dtype=self.first.dtype, reason=reason, isolation=self.isolation)
