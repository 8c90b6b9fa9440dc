"""Online softmax over blocks of keys in one loop: scores stay on chip, every block of keys is read and masked.

source    Dao et al., FlashAttention, arXiv:2205.14135; Milakov and Gimelshein, arXiv:1805.02867
idea      a block of queries keeps a running maximum, a running sum and its sums of weighted values in registers, and
          rescales them where the maximum grows: no score goes through memory
moves     q and out once; k and v once for each block of queries, mostly from L2
limits    a causal mask or a window saves nothing: what is not seen is computed and thrown away. triton_twoloops is this
          kernel with bounds
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
    launch_forward(q, k, v, key_lengths, bias, mask, alibi_slopes, sinks, out, lse, SPLIT=False, **given)
