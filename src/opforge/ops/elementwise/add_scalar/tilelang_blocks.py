"""One block of consecutive elements per thread block, one element per access, in float32.

moves     2 * elements * itemsize bytes: the least possible
limits    an access moves one element, because a vector could be misaligned: 16-bit dtypes need twice the instructions
"""

import tilelang.language as T

from opforge.device.tilelang.blocks import LIMITS as LIMITS, SPACE as SPACE, map_program

DEFAULT = {"block": 2048, "threads": 256}


def program(*, dtype, target, value, block, threads):
    def add_scalar(x):
        return x + T.float32(value)

    return map_program(add_scalar, 1, dtype=dtype, target=target, block=block, threads=threads)
