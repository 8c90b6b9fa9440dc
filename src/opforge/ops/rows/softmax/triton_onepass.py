"""Whole rows in registers, several to a program when they are narrow: x is read once and y written once.

moves     2 * rows * cols * itemsize bytes: the least possible. exp is exp2 of the difference times log2(e): tl.exp
          takes three instructions more an element, for results below 2^-126, which are 0 here
limits    rows up to 65536 wide, the most a block may hold; beyond 32768 registers spill. Wider rows belong to
          triton_online
"""

import triton
import triton.language as tl

from opforge.device.triton.blocks import load_once, store_once
from opforge.device.triton.rows import SPACE as SPACE, tile_of_rows, whole_rows

LAYOUTS = ("contiguous", "rows")
SUPPORTS = {"row_fits_one_block": "cols <= 65536"}
LIMITS = {"row_fits_the_threads": "cols <= 1024 * per_thread or per_thread in (0, 32)"}
DEFAULT = {"tile": 2048, "per_thread": 0}
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def softmax_rows(x_ptr, y_ptr, rows, cols, x_stride, y_stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row, col, inside = tile_of_rows(rows, cols, ROWS, BLOCK)
    x = load_once(x_ptr + row * x_stride + col, inside, -float("inf"))  # [ROWS, BLOCK], float32
    # a row past the end is -inf throughout and becomes NaN, which is masked off
    numerator = tl.exp2((x - tl.max(x, axis=1, keep_dims=True)) * LOG2E)
    y = numerator * (1.0 / tl.sum(numerator, axis=1, keep_dims=True))
    store_once(y_ptr + row * y_stride + col, y, inside)


def launch(x, y, tile, per_thread):
    rows, cols = x.shape
    grid, config = whole_rows(rows, cols, tile, per_thread)
    softmax_rows[grid](x, y, rows, cols, x.stride(0), y.stride(0), **config)
