"""What is said of candidates that got no verdict, when all others are on record."""

from __future__ import annotations

from collections.abc import Sequence

from opforge.core.language.errors import EnvironmentLacks
from opforge.runner import RELIEF


def error_of(unjudged: Sequence[tuple[str, Exception]]) -> Exception:
    """What to tell of those that got no verdict: the machine lacked something, or there is a defect, whose trace is
    wanted.
    """
    what, error = unjudged[0]
    sentence = f"{what} got no verdict" + (f", and {len(unjudged) - 1} more" if len(unjudged) > 1 else "")
    if isinstance(error, (EnvironmentLacks, OSError, MemoryError)) or "out of memory" in str(error).lower():
        reason = (
            str(error)
            if isinstance(error, EnvironmentLacks)
            else f"{type(error).__name__}: {error}".removesuffix(".").removesuffix(": ") + f". {RELIEF}"
        )
        lacks = EnvironmentLacks(f"{sentence}; all others are recorded. {reason}")
        lacks.__cause__ = error
        return lacks
    error.add_note(f"{sentence}; all others are recorded.")
    return error
