"""One block of consecutive elements per thread block, one element per access, in float32.

moves     3 * elements * itemsize bytes: the least possible
limits    an access moves one element, because a vector could be misaligned; on the C target exp is a call of libm
"""

import tilelang.language as T

from opforge.backends.tilelang_tools import from_float32, storage, to_float32

SPACE = {"block": (1024, 2048, 4096), "threads": (128, 256, 512)}
LIMITS = {"every_thread_has_work": "block >= threads"}
DEFAULT = {"block": 1024, "threads": 256}


def program(*, dtype, target, block, threads):
    n = T.dynamic("n", "int64")
    kept = storage(dtype, target)

    def gated(gate, up):
        g = to_float32(gate, dtype, target)
        return from_float32(g / (T.float32(1) + T.exp(-g)) * to_float32(up, dtype, target), dtype, target)

    @T.prim_func
    def silu_mul(gate: T.Tensor((n,), kept), up: T.Tensor((n,), kept), y: T.Tensor((n,), kept)):
        with T.Kernel(T.ceildiv(n, block), threads=threads) as b:
            for i in T.Parallel(block):
                if b * block + i < n:
                    y[b * block + i] = gated(gate[b * block + i], up[b * block + i])

    return silu_mul
