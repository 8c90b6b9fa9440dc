"""What a compiler, a launch or the hardware refused, by its words: the likely cause, and what to try.

The seeds' table (004, B2.3) with what the backends of this workbench say for the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from opforge.core.evidence.verdict import Broken, Crash, Timeout, Verdict


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """cause   in words; remedy: what to change; tunable: a smaller point of its space may be the remedy"""

    cause: str
    remedy: str
    tunable: bool = False


_LIMIT = Refusal(
    cause="a block wants more registers or shared memory than there are",
    remedy="make its tiles smaller, or use fewer stages or warps",
    tunable=True,
)
_LAUNCH = Refusal(
    cause="the grid or the block is none that the device takes",
    remedy="let the warps match the block; axes 2 and 3 of a grid end at 65535, a block at 1024 threads",
    tunable=True,
)
_ADDRESS = Refusal(
    cause="a wide access at an address that is no multiple of its width",
    remedy="compute strides in elements, and take wide accesses only where rows begin on 16 bytes",
)
_BOUNDS = Refusal(
    cause="an access outside the tensors",
    remedy="mask every load and store by the sizes, the last block of each axis too",
)
_TEXT = Refusal(
    cause="the source itself: a name, a type or a token",
    remedy="mend the line that the message names; the first error explains the rest",
)
_POWER = Refusal(
    cause="a block whose side is no power of two",
    remedy="give tl.arange a power of two, and mask what is beyond the size",
    tunable=True,
)
_LONG = Refusal(
    cause="the compiler did not end in time",
    remedy="make it simpler or split it: fewer unrolled loops, smaller constant sizes",
    tunable=True,
)
_ENDLESS = Refusal(
    cause="the kernel did not end in time",
    remedy="look at its loops: a condition that never fails, or threads that wait for each other",
)

WORDS: tuple[tuple[str, Refusal], ...] = (
    (r"out of (shared )?memory|out of resources?|OutOfResources|too many resources|too much shared data", _LIMIT),
    (r"misaligned address|misaligned", _ADDRESS),
    (r"invalid configuration|invalid argument|CUDA_ERROR_INVALID_VALUE|invalid launch", _LAUNCH),
    (r"compilation time|compil\w+ timed out", _LONG),
    (r"illegal memory access|out of bounds|out-of-bounds|memory outside", _BOUNDS),
    (r"power of (2|two)", _POWER),
    (r"\berror:|not declared|undeclared|NameError|SyntaxError|CompilationError|undefined", _TEXT),
)
"""The first that is found counts: what is said of resources often has an "error:" before it."""


def refusal_of(verdict: Verdict) -> Refusal | None:
    """What a verdict's words say of why nothing could be run; None where they say none of what is known."""
    if isinstance(verdict, Timeout):
        return _LONG if verdict.compiling else _ENDLESS
    if isinstance(verdict, Broken):
        said = verdict.reason
    elif isinstance(verdict, Crash):
        said = verdict.stderr
    else:
        return None
    return next((known for words, known in WORDS if re.search(words, said, flags=re.IGNORECASE)), None)
