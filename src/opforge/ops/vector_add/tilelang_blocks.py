"""One block of consecutive elements per thread block, one element per access.

moves     3 * elements * itemsize bytes: the least possible
limits    an access moves one element, because a vector could be misaligned: 16-bit dtypes need twice the instructions
"""

import tilelang.language as T

from opforge.backends.tilelang_tools import from_float32, storage, to_float32

SPACE = {"block": (1024, 2048, 4096), "threads": (128, 256, 512)}
LIMITS = {"every_thread_has_work": "block >= threads"}
DEFAULT = {"block": 2048, "threads": 256}


def program(*, dtype, target, block, threads):
    n = T.dynamic("n", "int64")
    kept = storage(dtype, target)

    @T.prim_func
    def add(x: T.Tensor((n,), kept), y: T.Tensor((n,), kept), z: T.Tensor((n,), kept)):
        with T.Kernel(T.ceildiv(n, block), threads=threads) as b:
            for i in T.Parallel(block):
                if b * block + i < n:
                    z[b * block + i] = from_float32(to_float32(x[b * block + i], dtype, target) + to_float32(y[b * block + i], dtype, target), dtype, target)

    return add
