"""Keys of a sequence split over programs, each with the online softmax of its part; a second kernel adds parts up.

source    Dao et al., Flash-Decoding, 2023
idea      one query a sequence leaves a GPU nearly empty: parts of the keys are work for all of it. The heads of a group
          are rows of one tile, so that keys and values are read once for all of them
moves     keys and values once, from wherever the table says; a part's sums in float32, written and read once
code      opforge/device/triton/attention_decode.py
"""

from opforge.device.triton.attention import SUPPORTS as SUPPORTS
from opforge.device.triton.attention_decode import (
    DEFAULT as DEFAULT,
    LIMITS as LIMITS,
    SPACE as SPACE,
    launch_decode,
)

LAYOUTS = ("contiguous", "rows", "strided")


def launch(
    q, k_pages, v_pages, block_table, lengths, out, lse, *, scale, window_left, softcap, batch_invariant,
    BLOCK_N, WAVES, num_warps, num_stages,
):  # fmt: skip
    launch_decode(
        q, k_pages, v_pages, block_table, lengths, out, lse, scale=scale, window_left=window_left, softcap=softcap,
        batch_invariant=batch_invariant, BLOCK_N=BLOCK_N, WAVES=WAVES, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
