"""What a function of a definition raises, in words that say whose it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opforge.core.definition.operator import Case, Operator
from opforge.core.language.errors import OpforgeError, UsageError


@contextmanager
def its_own_words(operator: Operator, part: str, case: Case | None = None) -> Iterator[None]:
    """What a function of a definition raises becomes a UsageError that says whose it is. Want of memory, a RuntimeError
    in torch, stays what it is.
    """
    try:
        yield
    except OpforgeError:
        raise
    except Exception as error:  # op.py is a guest's code
        if isinstance(error, MemoryError) or "memory" in str(error):
            raise
        raise UsageError(
            f"The {part} of {operator.name} raises {type(error).__name__}: {error}{in_case(case)}. Correct op.py."
        ) from error


def in_case(case: Case | None) -> str:
    """Words that name a case and its axes; "" for none."""
    return "" if case is None else f" (case {case.name}: {', '.join(f'{axis}={v}' for axis, v in case.axes.items())})"
