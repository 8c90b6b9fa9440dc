"""Errors that people meet, each with its exit code. Every message ends with the next step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from opforge.core.language.dtype_names import ALSO_CALLED

LONGEST_LINE = 240
"""So many characters of another library's message are shown."""


class OpforgeError(Exception):
    """Anything opforge refuses to do. `exit_code` is what the command line returns for it."""

    exit_code = 1


class UsageError(OpforgeError):
    """The request cannot be understood: an unknown name, a malformed file, a flag that does not fit."""

    exit_code = 2


class EnvironmentLacks(OpforgeError):
    """Something must be installed or plugged in first. The message names it and the command that brings it."""

    exit_code = 3


class NotNow(EnvironmentLacks):
    """What is needed is not to be had at this moment: a process, memory of a device. It says nothing of a kernel, and
    is no verdict on one.
    """


class Inadequate(OpforgeError):
    """An operator whose tolerance accepts what is no answer. Nothing of it is verified or timed until that is
    mended.
    """


def all_of(errors: Sequence[OpforgeError], *, others: bool) -> OpforgeError:
    """One error for several definitions that nothing can be verified by. `others`: there were operators besides.

    >>> print(all_of([UsageError("a is wrong."), UsageError("b is wrong.")], others=True))
    a is wrong.
    b is wrong.
    All other operators were done.
    """
    kind = type(errors[0]) if len({type(error) for error in errors}) == 1 else OpforgeError
    return kind("\n".join([*map(str, errors), *(["All other operators were done."] if others else [])]))


A_LINE = 12
"""So many names a reader takes in at a glance."""
SOME_LINES = 24
"""So many are named where none is near."""
NEAREST = 3
"""So many are named where there are more."""
MOST = 200
"""So many characters of a name that is not known are shown."""


def unknown(kind: str, name: str, known: Iterable[str], hint: str = "") -> UsageError:
    """A UsageError for a name that is not known, with the nearest known one; the others too, where they fit a line,
    else the next nearest.

    >>> print(unknown("operator", "sofmax", ["softmax", "relu"]))
    No operator named 'sofmax'. Did you mean 'softmax'? Known here: relu, softmax.
    >>> print(unknown("dtype", "fp16", ["float32", "float16", "int16"]))
    No dtype named 'fp16'. Did you mean 'float16'? Known here: float16, float32, int16.
    """
    names = sorted(known)
    # cutoff 0: of many names the nearest are named, however far they are
    near = get_close_matches(name, names, n=NEAREST, cutoff=0.0)
    meant = ALSO_CALLED.get(name.lower().removeprefix("torch."))
    close = [meant] if meant in names else get_close_matches(name, names, n=1)
    parts = [f"No {kind} named {name[:MOST]!r}."]
    if close:
        parts.append(f"Did you mean {close[0]!r}?")
    others = [other for other in near if other not in close]
    if len(names) <= A_LINE or (not close and len(names) <= SOME_LINES):
        parts.append(f"Known here: {', '.join(names) or 'none'}.")
    elif others:
        parts.append(f"{'Also near' if close else 'The nearest'}: {', '.join(others)}.")
    if not close and names and not hint:
        parts.append("Choose one of them.")
    if hint:
        parts.append(hint)
    return UsageError(" ".join(parts))


def first_line(error: BaseException) -> str:
    """What an error says, on one line of bounded length and without a full stop."""
    words = " ".join(str(error).split()) or type(error).__name__
    return (words if len(words) <= LONGEST_LINE else f"{words[:LONGEST_LINE]} …").rstrip(".")
