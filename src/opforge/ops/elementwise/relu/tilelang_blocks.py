"""One block of consecutive elements per thread block, one element per access.

moves     2 * elements * itemsize bytes: the least possible
limits    an access moves one element, because a vector could be misaligned: 16-bit dtypes need twice the instructions
"""

import tilelang.language as T

from opforge.device.tilelang.blocks import LIMITS as LIMITS, SPACE as SPACE, map_program

DEFAULT = {"block": 2048, "threads": 256}


def program(*, dtype, target, block, threads):
    def relu(x):
        # T.max(x, 0) would turn NaN into 0
        return T.if_then_else(x <= T.float32(0), T.float32(0), x)

    return map_program(relu, 1, dtype=dtype, target=target, block=block, threads=threads)
