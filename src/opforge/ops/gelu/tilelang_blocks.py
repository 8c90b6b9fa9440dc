"""One block of consecutive elements per thread block, one element per access, in float32.

idea      0.5 x (1 + tanh u) is x / (1 + exp(-2u)): one exp in place of a tanh, and no sum that cancels
moves     2 * elements * itemsize bytes: the least possible
limits    an access moves one element, because a vector could be misaligned; on the C target erf and exp are calls of libm
"""

import tilelang.language as T

from opforge.backends.tilelang_tools import from_float32, storage, to_float32

SPACE = {"block": (1024, 2048, 4096), "threads": (128, 256, 512)}
LIMITS = {"every_thread_has_work": "block >= threads"}
DEFAULT = {"block": 1024, "threads": 256}


def program(*, dtype, target, approximate, block, threads):
    n = T.dynamic("n", "int64")
    kept = storage(dtype, target)

    def bend(stored):
        v = to_float32(stored, dtype, target)
        if approximate == "tanh":
            # 2u = 2 sqrt(2/pi) (x + 0.044715 x^3)
            return from_float32(v / (T.float32(1) + T.exp(-v * (T.float32(1.5957691216057308) + T.float32(0.07135481282645612) * v * v))), dtype, target)
        return from_float32(T.float32(0.5) * v * (T.float32(1) + T.erf(v * T.float32(0.7071067811865476))), dtype, target)

    @T.prim_func
    def gelu(x: T.Tensor((n,), kept), y: T.Tensor((n,), kept)):
        with T.Kernel(T.ceildiv(n, block), threads=threads) as b:
            for i in T.Parallel(block):
                if b * block + i < n:
                    y[b * block + i] = bend(x[b * block + i])

    return gelu
