"""One block of consecutive elements per thread block, one element per access, in float32.

moves     2 * elements * itemsize bytes: the least possible
limits    an access moves one element, because a vector could be misaligned: 16-bit dtypes need twice the instructions;
          on the C target exp is a call of libm, which does not vectorise
"""

import tilelang.language as T

from opforge.device.tilelang.blocks import LIMITS as LIMITS, SPACE as SPACE, map_program

DEFAULT = {"block": 2048, "threads": 256}


def program(*, dtype, target, block, threads):
    def silu(x):
        return x / (T.float32(1) + T.exp(-x))

    return map_program(silu, 1, dtype=dtype, target=target, block=block, threads=threads)
