"""One block of consecutive elements per thread block, one element per access, in float32.

idea      0.5 x (1 + tanh u) is x / (1 + exp(-2u)): one exp in place of a tanh, and no sum that cancels
moves     2 * elements * itemsize bytes: the least possible
limits    an access moves one element, because a vector could be misaligned; on the C target erf and exp are calls of
          libm
"""

import tilelang.language as T

from opforge.device.tilelang.blocks import LIMITS as LIMITS, SPACE as SPACE, map_program

DEFAULT = {"block": 1024, "threads": 256}


def program(*, dtype, target, approximate, block, threads):
    def gelu(x):
        if approximate == "tanh":
            # 2u = 2 sqrt(2/pi) (x + 0.044715 x^3)
            return x / (
                T.float32(1) + T.exp(-x * (T.float32(1.5957691216057308) + T.float32(0.07135481282645612) * x * x))
            )
        return T.float32(0.5) * x * (T.float32(1) + T.erf(x * T.float32(0.7071067811865476)))

    return map_program(gelu, 1, dtype=dtype, target=target, block=block, threads=threads)
