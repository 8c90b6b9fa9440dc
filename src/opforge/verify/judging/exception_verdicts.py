"""What is said of an implementation whose process ended, did not answer, or cannot be had here: a verdict, from the
exception.
"""

from __future__ import annotations

from opforge.core.definition.operator import Case
from opforge.core.evidence.verdict import Crash, Timeout, Unsupported
from opforge.core.language.errors import EnvironmentLacks, NotNow
from opforge.runner import ServerDied, WorkerDied, WorkerLate

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
    if isinstance(error, ServerDied):
        raise NotNow(f"Not judged, twice: {error.stderr}. Run the command again.") from error
    if isinstance(error, WorkerDied):
        return crash_of(error, case, dtype, isolation)
    if isinstance(error, WorkerLate) and error.slow:
        where = f" of {case.name}" if case is not None else ""
        raise NotNow(
            f"One call{where} takes more than {error.limit_s:g} s of processor time in the interpreter, and it got on: "
            "nothing says that it hangs. Verify it on a GPU (--device cuda), or give the operator smaller cases."
        )
    if isinstance(error, WorkerLate):
        return Timeout(case=case, dtype=dtype, limit_s=error.limit_s, isolation=isolation, compiling=error.compiling)
    return Unsupported(reason=str(error))


def crash_of(error: WorkerDied, case: Case | None, dtype: str, isolation: str) -> Crash | Unsupported:
    """How a worker ended, as a verdict: none on the kernel where it ended with the process that workers come from."""
    if isinstance(error, ServerDied):
        return Unsupported(reason=f"{error.stderr}, twice; run the command again")
    return Crash(case=case, dtype=dtype, status=error.status, stderr=error.stderr, isolation=isolation)
