"""What a function of a definition raises, in words that say whose it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opforge.core.definition.operator import Case, Operator
from opforge.core.language.blind import Looked, blind
from opforge.core.language.errors import OpforgeError, UsageError


@contextmanager
def its_own_words(operator: Operator, part: str, case: Case | None = None) -> Iterator[None]:
    """What a function of a definition raises becomes a UsageError that says whose it is. Want of memory, a RuntimeError
    in torch, stays what it is. Where the function looks at who asks, as a definition never has to, that is said.
    """
    looked: list[str] = []
    try:
        with blind(str(operator.folder or ""), looked):
            yield
    except OpforgeError:
        raise
    except Looked:
        # said below: the function may have caught it, too
        assert looked
    except Exception as error:  # op.py is a guest's code
        if isinstance(error, MemoryError) or "memory" in str(error):
            raise
        raise UsageError(
            f"The {part} of {operator.name} raises {type(error).__name__}: {error}{in_case(case)}. Correct op.py."
        ) from error
    if looked:
        raise UsageError(
            f"The {part} of {operator.name} looks at {looked[0]}{in_case(case)}: what a definition says must not "
            "depend on who asks, or when. Compute it from its arguments alone. Correct op.py."
        )


def in_case(case: Case | None) -> str:
    """Words that name a case and its axes; "" for none."""
    return "" if case is None else f" (case {case.name}: {', '.join(f'{axis}={v}' for axis, v in case.axes.items())})"
