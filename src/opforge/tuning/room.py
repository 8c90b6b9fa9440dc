"""Want of room on a device that several searches share. It is nobody's verdict: what found none is asked again, and
what never found any was not tried.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import chain, count, repeat
from typing import TypeVar

from opforge.core.evidence.verdict import Broken, Crash, Verdict
from opforge.core.language.errors import NotNow
from opforge.verify.judging.run_case import OUT_OF_MEMORY

T = TypeVar("T")

PATIENCE_S = 90.0
"""Others need some seconds for a point, and hold most of their memory while they judge one."""
PAUSES_S = (0.5, 1.0, 2.0, 4.0)
AGAIN = 2
CROWDED = 0.5
"""The part of a device's memory that is free at the least where a kernel that finds too little asks for too much."""


class NoRoom(Exception):
    """Nothing was found out, for want of room or of processes; the message says what was said last."""


def patiently(
    ask: Callable[[], T],
    lacking: Callable[[T], str | None],
    *,
    relief: Callable[[], object],
    end: Callable[[], bool],
    patience_s: float = PATIENCE_S,
) -> T:
    """The answer to `ask`, asked again as long as it finds no room.

    lacking   of an answer, what it lacked; None for one that counts
    relief    gives back what can be spared, before each pause
    end       whether nobody wants to wait any more

    Raises NoRoom.
    """
    given_up, pauses = time.monotonic() + patience_s, chain(PAUSES_S, repeat(PAUSES_S[-1]))
    while True:
        try:
            answer = ask()
            reason = lacking(answer)
            if reason is None:
                return answer
        except NotNow as error:
            reason = str(error)
        except RuntimeError as error:
            # the oracle's or the judge's own
            if not says_so(str(error)):
                raise
            reason = str(error).splitlines()[0]
        relief()
        pause_s = next(pauses)
        if end() or time.monotonic() + pause_s > given_up:
            raise NoRoom(reason)
        time.sleep(pause_s)


def says_so(text: str) -> bool:
    """Whether an error's words say that memory is short."""
    return any(words in text.lower() for words in OUT_OF_MEMORY)


def shortage(device: str) -> Callable[[Verdict], bool]:
    """A function that says of the verdicts on one point, one after another, whether it failed for want of memory and
    may pass when it is asked again. The first AGAIN times it may: who held the memory may have given it back since.
    Later it may where most of the device is still taken.
    """
    asked = count(1)

    def short(verdict: Verdict) -> bool:
        if device == "cpu" or not isinstance(verdict, Broken | Crash):
            return False
        text = verdict.reason if isinstance(verdict, Broken) else verdict.stderr
        return says_so(text) and (next(asked) <= AGAIN or crowded(device))

    return short


def crowded(device: str) -> bool:
    """Whether most of a device's memory is taken."""
    import torch

    try:
        free, total = torch.get_device_module(device).mem_get_info()
    except RuntimeError:
        return True  # there is not even room for a context
    return bool(free < CROWDED * total)
