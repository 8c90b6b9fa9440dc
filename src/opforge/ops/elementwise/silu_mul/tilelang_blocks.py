"""One block of consecutive elements per thread block, one element per access, in float32.

moves     3 * elements * itemsize bytes: the least possible
limits    an access moves one element, because a vector could be misaligned; on the C target exp is a call of libm
"""

import tilelang.language as T

from opforge.device.tilelang.blocks import LIMITS as LIMITS, SPACE as SPACE, map_program

DEFAULT = {"block": 1024, "threads": 256}


def program(*, dtype, target, block, threads):
    def silu_mul(gate, up):
        return gate / (T.float32(1) + T.exp(-gate)) * up

    return map_program(silu_mul, 2, dtype=dtype, target=target, block=block, threads=threads)
