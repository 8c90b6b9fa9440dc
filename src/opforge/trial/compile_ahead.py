"""Compiles native kernels in the background while others are being verified: compilers are what a first run
waits for.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from opforge.backends import Missing, backend, native
from opforge.backends.cpp import Cpp
from opforge.backends.cuda import Cuda
from opforge.core import spans
from opforge.core.errors import OpforgeError
from opforge.core.implementation import Config, Implementation


@contextlib.contextmanager
def compiling_ahead(implementations: Iterable[Implementation], device: str) -> Iterator[None]:
    """Start compiling the native ones for `device`, in order; what has not begun when the block ends is given up.

    A failure is not reported here: whoever needs the library compiles it again and reports what the compiler said.
    """
    pool = ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 2) // 2))
    try:
        for implementation in implementations:
            if implementation.backend in ("cpp", "cuda") and not isinstance(
                backend(implementation.backend).execution_mode(device), Missing
            ):
                pool.submit(_compile, implementation, device)
        yield
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def compile_seconds(implementation: Implementation, config: Config | None, device: str) -> float | None:
    """Seconds that it took to compile a native implementation for `device`, when the library that would be taken now
    was made; None for others, and where there is none.
    """
    if implementation.backend not in ("cpp", "cuda"):
        return None
    chosen = implementation.default if config is None else config
    with contextlib.suppress(OpforgeError, OSError, ValueError):
        toolchain = (
            Cuda().toolchain_for(implementation, device) if implementation.backend == "cuda" else Cpp().toolchain()
        )
        return native.seconds_of(implementation, chosen, toolchain)
    return None


def _compile(implementation: Implementation, device: str) -> None:
    with contextlib.suppress(OpforgeError), spans.span("compile", implementation.name):
        builder: Cuda | Cpp = Cuda() if implementation.backend == "cuda" else Cpp()
        builder.build(implementation, implementation.default, device)
