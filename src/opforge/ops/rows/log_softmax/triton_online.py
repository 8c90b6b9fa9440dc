"""A block of the row at a time, with a running maximum and a sum that is rescaled when the maximum grows.

source    Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867, 2018
moves     3 * rows * cols * itemsize bytes: x is read twice (the second time from L2 where it fits), y written once
limits    none in width; Large blocks keep few rows in flight, so that they stay in L2
"""

import triton
import triton.language as tl

from opforge.device.triton.blocks import load_again, store_once
from opforge.device.triton.online import LIMITS as LIMITS, SPACE as SPACE, peak_and_sum, row_blocks

LAYOUTS = ("contiguous", "rows")
DEFAULT = {"block": 16384, "per_thread": 32}


@triton.jit
def log_softmax_blocks(x_ptr, y_ptr, cols, x_stride, y_stride, BLOCK: tl.constexpr):
    # int64: row * stride leaves int32 beyond 32768 x 65536 elements
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * x_stride
    y_row = y_ptr + row * y_stride
    col = tl.arange(0, BLOCK)
    peak, total = peak_and_sum(x_row, cols, BLOCK)
    log_sum = tl.log(total)
    for start in range(0, cols, BLOCK):
        inside = start + col < cols
        x = load_again(x_row + start + col, inside, -float("inf"))
        y = (x - peak) - log_sum
        store_once(y_row + start + col, y, inside)


def launch(x, y, block, per_thread):
    rows, cols = x.shape
    log_softmax_blocks[(rows,)](x, y, cols, x.stride(0), y.stride(0), **row_blocks(cols, block, per_thread))
