"""A row read a block at a time in Triton: the maximum and the sum of exponentials that softmax and its kin need, in one
pass.

SPACE: `block`, the elements of a step, and `per_thread`, those of a thread.
source    Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867, 2018
"""

import triton
import triton.language as tl

SPACE = {"block": (4096, 8192, 16384, 32768), "per_thread": (16, 32)}
LIMITS = {"at_most_32_warps": "block <= 1024 * per_thread"}


@triton.jit
def peak_and_sum(x_row, cols, BLOCK: tl.constexpr):
    """The maximum of a row and the sum of exp(x - maximum), reading the row once: a running maximum, and a sum that is
    rescaled when it grows.
    """
    col = tl.arange(0, BLOCK)
    # every lane keeps a sum of its own, so that blocks share a maximum and nothing else
    peak = -float("inf")
    part = tl.zeros([BLOCK], tl.float32)
    for start in range(0, cols, BLOCK):
        x = tl.load(x_row + start + col, mask=start + col < cols, other=-float("inf"), eviction_policy="evict_last").to(
            tl.float32
        )  # [BLOCK]
        higher = tl.maximum(peak, tl.max(x, axis=0))
        # while only -inf was seen the shift is 0, because -inf - -inf is NaN
        shift = tl.where(higher == -float("inf"), 0.0, higher)
        part = part * tl.exp(peak - shift) + tl.exp(x - shift)
        peak = higher
    return peak, tl.sum(part, axis=0)


def row_blocks(cols: int, block: int, per_thread: int) -> dict[str, int]:
    """Config of a program that reads a row `block` columns at a time, `per_thread` a thread."""
    block = min(block, max(128, triton.next_power_of_2(cols)))
    return {"BLOCK": block, "num_warps": max(1, block // (32 * per_thread))}
