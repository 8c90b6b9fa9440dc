"""A block of the row at a time, with a running maximum and a sum that is rescaled when the maximum grows.

source    Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867, 2018
moves     3 * rows * cols * itemsize bytes: x is read twice (the second time from L2 where it fits), y written once
limits    none in width; Large blocks keep few rows in flight, so that they stay in L2
"""

import triton
import triton.language as tl

LAYOUTS = ("contiguous", "rows")
# elements of a step, and of a thread
SPACE = {"block": (4096, 8192, 16384, 32768), "per_thread": (16, 32)}
LIMITS = {"at_most_32_warps": "block <= 1024 * per_thread"}
DEFAULT = {"block": 16384, "per_thread": 32}


@triton.jit
def log_softmax_blocks(x_ptr, y_ptr, cols, x_stride, y_stride, BLOCK: tl.constexpr):
    # int64: row * stride leaves int32 beyond 32768 x 65536 elements
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * x_stride
    y_row = y_ptr + row * y_stride
    col = tl.arange(0, BLOCK)
    # every lane keeps a sum of its own, so that blocks share a maximum and nothing else
    peak = -float("inf")
    part = tl.zeros([BLOCK], tl.float32)
    for start in range(0, cols, BLOCK):
        x = tl.load(x_row + start + col, mask=start + col < cols, other=-float("inf"), eviction_policy="evict_last").to(tl.float32)  # [BLOCK]
        higher = tl.maximum(peak, tl.max(x, axis=0))
        # while only -inf was seen the shift is 0, because -inf - -inf is NaN
        shift = tl.where(higher == -float("inf"), 0.0, higher)
        part = part * tl.exp(peak - shift) + tl.exp(x - shift)
        peak = higher
    log_sum = tl.log(tl.sum(part, axis=0))
    for start in range(0, cols, BLOCK):
        inside = start + col < cols
        x = tl.load(x_row + start + col, mask=inside, other=-float("inf"), eviction_policy="evict_first").to(tl.float32)
        y = (x - peak) - log_sum
        tl.store(y_row + start + col, y.to(y_ptr.dtype.element_ty), mask=inside, eviction_policy="evict_first")


def launch(x, y, block, per_thread):
    rows, cols = x.shape
    block = min(block, max(128, triton.next_power_of_2(cols)))
    log_softmax_blocks[(rows,)](x, y, cols, x.stride(0), y.stride(0), BLOCK=block, num_warps=max(1, block // (32 * per_thread)))
