"""A token and a block of its heads per program: queries and keys turned back in one launch.

moves     q and k once in and once out; angles come from the cache for all but the first block of a token
limits    heads of up to 2048 elements (registers)
"""

from opforge.device.triton.rotary import (
    DEFAULT as DEFAULT,
    LAYOUTS as LAYOUTS,
    LIMITS as LIMITS,
    SPACE as SPACE,
    SUPPORTS as SUPPORTS,
    rotate,
)


def launch(dq_out, dk_out, cos, sin, positions, dq, dk, *, interleaved, HEADS, num_warps):
    rotate(dq_out, dk_out, cos, sin, positions, dq, dk, interleaved, -1.0, HEADS, num_warps)
