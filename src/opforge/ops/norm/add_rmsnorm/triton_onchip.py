"""Rows up to 16384 wide stay in registers, several to a program when they are narrow; of wider ones the sum is written
and read again.

moves     4 * rows * cols * itemsize bytes up to 16384 columns: the least possible; beyond, the sum is read again (from
          L2 where it fits)
limits    none in width
"""

import triton
import triton.language as tl

from opforge.device.triton.norms import BLOCK, WIDEST, load_float, normalised_rows, store_float
from opforge.device.triton.rows import tile_of_rows

LAYOUTS = ("contiguous", "rows")


@triton.jit
def add_rmsnorm_rows(
    x_ptr,
    residual_ptr,
    weight_ptr,
    y_ptr,
    total_ptr,
    rows,
    cols,
    x_stride,
    residual_stride,
    y_stride,
    total_stride,
    eps,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, col, inside = tile_of_rows(rows, cols, ROWS, BLOCK)
    x = load_float(x_ptr + row * x_stride + col, inside)  # [ROWS, BLOCK]
    residual = load_float(residual_ptr + row * residual_stride + col, inside)
    weight = load_float(weight_ptr + col, col < cols)
    total = x + residual
    store_float(total_ptr + row * total_stride + col, total, inside)
    scale = 1.0 / tl.sqrt(tl.sum(total * total, axis=1, keep_dims=True) / cols + eps)  # [ROWS, 1]
    y = total * scale * weight
    store_float(y_ptr + row * y_stride + col, y, inside)


@triton.jit
def add_rmsnorm_blocks(
    x_ptr,
    residual_ptr,
    weight_ptr,
    y_ptr,
    total_ptr,
    cols,
    x_stride,
    residual_stride,
    y_stride,
    total_stride,
    eps,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * x_stride
    residual_row = residual_ptr + row * residual_stride
    y_row = y_ptr + row * y_stride
    total_row = total_ptr + row * total_stride
    col = tl.arange(0, BLOCK)
    # the sum of squares stays spread over the lanes until the end: one reduction, and smaller rounding errors
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, cols, BLOCK):
        inside = start + col < cols
        total = load_float(x_row + start + col, inside) + load_float(residual_row + start + col, inside)
        store_float(total_row + start + col, total, inside)
        squares += total * total
    scale = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / cols + eps)
    for start in range(0, cols, BLOCK):
        inside = start + col < cols
        # each thread reads what it wrote itself
        total = load_float(total_row + start + col, inside)
        weight = load_float(weight_ptr + start + col, inside)
        store_float(y_row + start + col, total * scale * weight, inside)


def launch(x, residual, weight, y, total, *, eps):
    rows, cols = x.shape
    strides = (x.stride(0), residual.stride(0), y.stride(0), total.stride(0))
    if cols > WIDEST:
        add_rmsnorm_blocks[(rows,)](x, residual, weight, y, total, cols, *strides, eps, BLOCK=BLOCK, num_warps=8)
        return
    grid, config = normalised_rows(rows, cols)
    add_rmsnorm_rows[grid](x, residual, weight, y, total, rows, cols, *strides, eps, **config)
