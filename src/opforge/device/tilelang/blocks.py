"""Blocks of consecutive elements in TileLang: one program for every elementwise kernel, its space and the limits of
that.

An access moves one element, because a vector could be misaligned.
"""

from collections.abc import Callable
from typing import Any

import tilelang.language as T

from opforge.device.tilelang.tools import from_float32, storage, to_float32

SPACE = {"block": (1024, 2048, 4096), "threads": (128, 256, 512)}
LIMITS = {"every_thread_has_work": "block >= threads"}


def map_program(f: Callable[..., Any], inputs: int, *, dtype: str, target: str, block: int, threads: int) -> Any:
    """The prim_func of y[i] = f(x[i]) for one input or y[i] = f(a[i], b[i]) for two, over n elements; f takes and gives
    float32 expressions.
    It has the name of f."""
    n = T.dynamic("n", "int64")
    kept = storage(dtype, target)

    def computed(*stored: Any) -> Any:
        return from_float32(f(*(to_float32(value, dtype, target) for value in stored)), dtype, target)

    if inputs == 1:

        @T.prim_func
        def mapped(x: T.Tensor((n,), kept), y: T.Tensor((n,), kept)):
            with T.Kernel(T.ceildiv(n, block), threads=threads) as b:
                for i in T.Parallel(block):
                    if b * block + i < n:
                        y[b * block + i] = computed(x[b * block + i])
    else:

        @T.prim_func
        def mapped(x: T.Tensor((n,), kept), z: T.Tensor((n,), kept), y: T.Tensor((n,), kept)):
            with T.Kernel(T.ceildiv(n, block), threads=threads) as b:
                for i in T.Parallel(block):
                    if b * block + i < n:
                        y[b * block + i] = computed(x[b * block + i], z[b * block + i])

    return mapped.with_attr("global_symbol", f.__name__)
