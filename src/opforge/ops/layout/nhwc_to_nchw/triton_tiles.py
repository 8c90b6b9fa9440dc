"""A tile per program, read along rows and written along columns; Triton exchanges the lanes through shared memory.

moves     2 * elements * itemsize bytes: the least possible
limits    16-byte accesses only where both sides are multiples of 16 bytes; a side shorter than the tile leaves lanes
          idle
"""

from opforge.device.triton.transpose import LIMITS as LIMITS, SPACE as SPACE, transpose_matrices

DEFAULT = {"SIDE": 64, "num_warps": 4}


def launch(x, y, *, SIDE, num_warps):
    # a picture is a matrix of positions by channels
    transpose_matrices(x, y, SIDE, num_warps)
