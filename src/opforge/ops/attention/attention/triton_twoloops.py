"""Online softmax in loops whose bounds are the mask: blocks that every query sees whole are not masked.

source    Dao, FlashAttention-2, arXiv:2307.08691; Milakov and Gimelshein, arXiv:1805.02867
idea      a block of queries keeps its sums of weighted values in registers and reads the keys that any of its queries
          sees. Only blocks of keys at the edges of what is seen are masked, so a mask costs edge blocks alone, and a
          window costs O(N W)
moves     q and out once; k and v once for each block of queries, mostly from L2
config    BLOCK_M queries by BLOCK_N keys; causal rows with the most keys begin first
precision float32 products in float32 ("ieee"); 16-bit weights are rounded to the dtype before they meet v
"""

from opforge.device.triton.attention import (
    DEFAULT as DEFAULT,
    LIMITS as LIMITS,
    SPACE as SPACE,
    launch_forward,
)

SUPPORTS = {
    "a_block_fits": "max(16, next_pow2(head_dim)) + max(16, next_pow2(value_dim)) <= 2048",
    "some_stay": "dropout < 1",
}
LAYOUTS = ("contiguous", "rows", "strided")


def launch(q, k, v, key_lengths, bias, mask, alibi_slopes, sinks, out, lse, **given):
    launch_forward(q, k, v, key_lengths, bias, mask, alibi_slopes, sinks, out, lse, SPLIT=True, **given)
