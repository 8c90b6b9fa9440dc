"""Compiles native kernels in the background while others are being verified: compilers are what a first run
waits for.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from opforge.backends import Missing, backend, native
from opforge.backends.cpp import Cpp
from opforge.backends.cuda import Cuda
from opforge.core.definition.implementation import Config, Implementation
from opforge.core.language import spans
from opforge.core.language.errors import OpforgeError
from opforge.machine.accelerator import cuda_targets


@contextlib.contextmanager
def compiling_ahead(implementations: Iterable[Implementation], device: str) -> Iterator[None]:
    """Start compiling the native ones for `device`, in order; what has not begun when the block ends is given up.

    A failure is not reported here: whoever needs the library compiles it again and reports what the compiler said.
    """
    pool = _compilers()
    try:
        for implementation in implementations:
            if implementation.backend in ("cpp", "cuda") and not isinstance(
                backend(implementation.backend).execution_mode(device), Missing
            ):
                pool.submit(_compile, implementation, device)
        yield
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def compiling_without_torch(implementations: Sequence[Implementation], device: str) -> Iterator[None]:
    """Start compiling the CUDA ones before this process has PyTorch, whose first import takes as long as nvcc: where
    an NVIDIA GPU is asked for, or would be taken (`device` ""), and those that nvidia-smi sees are of one target.
    Whoever needs a library meanwhile waits for it (backends.cache). Given up as in `compiling_ahead`.
    """
    pool = _compilers()

    def begin() -> None:
        targets = cuda_targets()
        for implementation in implementations:
            if len(targets) == 1 and implementation.backend == "cuda":
                pool.submit(_compile_for, implementation, *targets)

    try:
        if device in ("", "cuda") and shutil.which("nvcc") is not None:
            pool.submit(begin)
        yield
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def compiled_now(implementation: Implementation, config: Config, device: str) -> None:
    """Have the library of a native implementation in the cache: a worker that has been bound before may not write
    there any more. A failure is not reported here, as in `compiling_ahead`.
    """
    if implementation.backend in ("cpp", "cuda"):
        _compile(implementation, device, config)


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


def _compile(implementation: Implementation, device: str, config: Config | None = None) -> None:
    with contextlib.suppress(OpforgeError), spans.span("compile", implementation.name):
        builder: Cuda | Cpp = Cuda() if implementation.backend == "cuda" else Cpp()
        builder.build(implementation, implementation.default if config is None else config, device)


def _compile_for(implementation: Implementation, target: str) -> None:
    if implementation.arch in ("", target):
        with contextlib.suppress(OpforgeError), spans.span("compile", implementation.name):
            native.library(implementation, implementation.default, Cuda().device_toolchain(target))


def _compilers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 2) // 2))
