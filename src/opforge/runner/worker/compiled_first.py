"""Compilers that run before any code of a kernel has: what the machine lacks for them is told of no source."""

from __future__ import annotations

import re
from collections.abc import Callable

from opforge.backends import grid_limits
from opforge.backends.native import CompilationTimedOut
from opforge.core.language.errors import NotNow, OpforgeError
from opforge.runner.wire.messages import CompilerLate, Lacks

SHORT = re.compile(
    "No space left on device|Disk quota exceeded|Cannot allocate memory|Resource temporarily unavailable|Too "
    "many open files|virtual memory exhausted"
    "|out of memory allocating|Killed signal terminated program \\w*|died due to signal 9"
)
"""What compilers say when the machine is short of something."""


def compiled(build: Callable[[], object]) -> None:
    """Compile, before any code of the kernel has run. Raises NotNow where it is the machine that failed: what is told
    of a full disk, or of a compiler
    that was killed for its memory, is told of no source."""
    try:
        build()
    except (OSError, MemoryError) as error:
        raise NotNow(
            f"it could not be compiled here ({type(error).__name__}: {error}). Free some space or memory, and run it "
            "again."
        ) from error
    except OpforgeError as error:
        short = SHORT.search(str(error))
        if short is None:
            raise
        raise NotNow(
            f"it could not be compiled here (the compiler: {short[0]}). Free some space or memory, and run it again."
        ) from error


def no_fault_of_its_arithmetic(error: Exception) -> CompilerLate | Lacks | None:
    """The answer to what was raised where a limit was met: a compiler's, or a device's of a grid; None for the rest."""
    if isinstance(error, CompilationTimedOut):
        return CompilerLate(reason=str(error), limit_s=error.limit_s)
    grid = grid_limits.behind(error)
    return None if grid is None else Lacks(reason=str(grid))
