"""Rows up to 16384 wide stay in registers, several to a program when they are narrow; wider ones are read block by
block.

moves     2 * rows * cols * itemsize bytes up to 16384 columns: the least possible; beyond, x is read twice (from L2
          where it fits)
limits    none in width
"""

import triton
import triton.language as tl

from opforge.device.triton.norms import BLOCK, WIDEST, load_float, normalised_rows, store_float
from opforge.device.triton.rows import tile_of_rows

LAYOUTS = ("contiguous", "rows")


@triton.jit
def rmsnorm_rows(
    x_ptr, weight_ptr, y_ptr, rows, cols, x_stride, y_stride, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    row, col, inside = tile_of_rows(rows, cols, ROWS, BLOCK)
    x = load_float(x_ptr + row * x_stride + col, inside)  # [ROWS, BLOCK]
    weight = load_float(weight_ptr + col, col < cols)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1, keep_dims=True) / cols + eps)  # [ROWS, 1]
    y = x * scale * weight
    store_float(y_ptr + row * y_stride + col, y, inside)


@triton.jit
def rmsnorm_blocks(x_ptr, weight_ptr, y_ptr, cols, x_stride, y_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * x_stride
    y_row = y_ptr + row * y_stride
    col = tl.arange(0, BLOCK)
    # the sum stays spread over the lanes until the end: one reduction, and smaller rounding errors
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, cols, BLOCK):
        x = load_float(x_row + start + col, start + col < cols)
        squares += x * x
    scale = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / cols + eps)
    for start in range(0, cols, BLOCK):
        inside = start + col < cols
        x = load_float(x_row + start + col, inside)
        weight = load_float(weight_ptr + start + col, inside)
        y = x * scale * weight
        store_float(y_row + start + col, y, inside)


def launch(x, weight, y, *, eps):
    rows, cols = x.shape
    if cols > WIDEST:
        rmsnorm_blocks[(rows,)](x, weight, y, cols, x.stride(0), y.stride(0), eps, BLOCK=BLOCK, num_warps=8)
        return
    grid, config = normalised_rows(rows, cols)
    rmsnorm_rows[grid](x, weight, y, rows, cols, x.stride(0), y.stride(0), eps, **config)
