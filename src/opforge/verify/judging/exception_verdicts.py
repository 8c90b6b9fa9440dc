"""What is said of an implementation whose process ended, did not answer, or cannot be had here: a verdict, from the
exception.
"""

from __future__ import annotations

from opforge.core.errors import EnvironmentLacks, NotNow
from opforge.core.operator import Case
from opforge.core.verdict import Crash, Timeout, Unsupported
from opforge.runner import WorkerDied, WorkerLate

NO_ANSWER = (WorkerDied, WorkerLate, EnvironmentLacks)
"""What a worker raises where no answer comes."""


def verdict_of(
    error: WorkerDied | WorkerLate | EnvironmentLacks, case: Case | None, dtype: str, isolation: str
) -> Crash | Timeout | Unsupported:
    """The verdict that an exception of ENDED means. Raises NotNow again: the machine's trouble of this moment says
    nothing of a kernel.
    """
    if isinstance(error, NotNow):
        raise error
    if isinstance(error, WorkerDied):
        return Crash(case=case, dtype=dtype, status=error.status, stderr=error.stderr, isolation=isolation)
    if isinstance(error, WorkerLate):
        return Timeout(case=case, dtype=dtype, limit_s=error.limit_s, isolation=isolation, compiling=error.compiling)
    return Unsupported(reason=str(error))
