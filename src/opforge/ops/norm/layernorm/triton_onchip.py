"""Rows up to 16384 wide stay in registers, several to a program when they are narrow; wider ones are read block by
block.

moves     2 * rows * cols * itemsize bytes up to 16384 columns: the least possible; beyond, x is read three times (from
          L2 where it fits)
limits    none in width; the variance is a second pass over deviations from the mean, never E[x^2] - E[x]^2
"""

import triton
import triton.language as tl

from opforge.device.triton.norms import (
    BLOCK,
    WIDEST,
    centred_rows,
    load_float,
    mean_of_row,
    normalised_rows,
    store_float,
    variance_of_row,
)
from opforge.device.triton.rows import tile_of_rows

LAYOUTS = ("contiguous", "rows")


@triton.jit
def layernorm_rows(
    x_ptr, weight_ptr, bias_ptr, y_ptr, rows, cols, x_stride, y_stride, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    row, col, inside = tile_of_rows(rows, cols, ROWS, BLOCK)
    x = load_float(x_ptr + row * x_stride + col, inside)  # [ROWS, BLOCK]
    weight = load_float(weight_ptr + col, col < cols)
    bias = load_float(bias_ptr + col, col < cols)
    centred = centred_rows(x, inside, cols)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1, keep_dims=True) / cols + eps)  # [ROWS, 1]
    y = centred * scale * weight + bias
    store_float(y_ptr + row * y_stride + col, y, inside)


@triton.jit
def layernorm_blocks(x_ptr, weight_ptr, bias_ptr, y_ptr, cols, x_stride, y_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * x_stride
    y_row = y_ptr + row * y_stride
    col = tl.arange(0, BLOCK)
    mean = mean_of_row(x_row, cols, BLOCK)
    scale = 1.0 / tl.sqrt(variance_of_row(x_row, mean, cols, BLOCK) + eps)
    for start in range(0, cols, BLOCK):
        inside = start + col < cols
        x = load_float(x_row + start + col, inside)
        weight = load_float(weight_ptr + start + col, inside)
        bias = load_float(bias_ptr + start + col, inside)
        y = (x - mean) * scale * weight + bias
        store_float(y_row + start + col, y, inside)


def launch(x, weight, bias, y, *, eps):
    rows, cols = x.shape
    if cols > WIDEST:
        layernorm_blocks[(rows,)](x, weight, bias, y, cols, x.stride(0), y.stride(0), eps, BLOCK=BLOCK, num_warps=8)
        return
    grid, config = normalised_rows(rows, cols)
    layernorm_rows[grid](x, weight, bias, y, rows, cols, x.stride(0), y.stride(0), eps, **config)
