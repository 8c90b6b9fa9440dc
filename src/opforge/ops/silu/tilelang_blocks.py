"""One block of consecutive elements per thread block, one element per access, in float32.

moves     2 * elements * itemsize bytes: the least possible
limits    an access moves one element, because a vector could be misaligned: 16-bit dtypes need twice the instructions;
          on the C target exp is a call of libm, which does not vectorise
"""

import tilelang.language as T

from opforge.backends.tilelang_tools import from_float32, storage, to_float32

SPACE = {"block": (1024, 2048, 4096), "threads": (128, 256, 512)}
LIMITS = {"every_thread_has_work": "block >= threads"}
DEFAULT = {"block": 2048, "threads": 256}


def program(*, dtype, target, block, threads):
    n = T.dynamic("n", "int64")
    kept = storage(dtype, target)

    def computed(stored):
        v = to_float32(stored, dtype, target)
        return from_float32(v / (T.float32(1) + T.exp(-v)), dtype, target)

    @T.prim_func
    def silu(x: T.Tensor((n,), kept), y: T.Tensor((n,), kept)):
        with T.Kernel(T.ceildiv(n, block), threads=threads) as b:
            for i in T.Parallel(block):
                if b * block + i < n:
                    y[b * block + i] = computed(x[b * block + i])

    return silu
