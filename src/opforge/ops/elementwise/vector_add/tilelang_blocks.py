"""One block of consecutive elements per thread block, one element per access.

moves     3 * elements * itemsize bytes: the least possible
limits    an access moves one element, because a vector could be misaligned: 16-bit dtypes need twice the instructions
"""

from opforge.device.tilelang.blocks import LIMITS as LIMITS, SPACE as SPACE, map_program

DEFAULT = {"block": 2048, "threads": 256}


def program(*, dtype, target, block, threads):
    def add(x, y):
        return x + y

    return map_program(add, 2, dtype=dtype, target=target, block=block, threads=threads)
