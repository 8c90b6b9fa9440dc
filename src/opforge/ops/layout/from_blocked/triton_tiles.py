"""Several tiles of a row of tiles per program: y[o, b, a, w] = x[o, a, b, w], each run of w contiguous on both sides.

moves     2 * elements * itemsize bytes: the least possible
limits    tiles whose rows are no power of two leave lanes idle
"""

from opforge.device.triton.exchange import LIMITS as LIMITS, SPACE as SPACE, exchange_middle

DEFAULT = {"BLOCK": 4096, "num_warps": 4}


def launch(x, y, *, BLOCK, num_warps):
    exchange_middle(x, y, BLOCK, num_warps)
