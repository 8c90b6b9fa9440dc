"""Rows up to 16384 wide stay in registers, several to a program when they are narrow; wider ones are read block by
block.

moves     rows * cols * itemsize bytes up to 16384 columns: the least possible; beyond, x is read twice (from L2 where
          it fits)
limits    one program per row at most: few, long rows leave most of a GPU idle.
          The variance is a second pass over deviations from the mean, never E[x^2] - E[x]^2
"""

import triton
import triton.language as tl

from opforge.device.triton.norms import (
    BLOCK,
    WIDEST,
    load_float,
    mean_of_row,
    normalised_rows,
    store_float,
    variance_of_row,
)

LAYOUTS = ("contiguous", "rows")
BEST = {"rows_in_registers": "cols <= 16384"}
"""Wider rows are read twice."""


@triton.jit
def moments_rows(x_ptr, mean_ptr, var_ptr, rows, cols, x_stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    # int64: row * stride leaves int32 beyond 32768 x 65536 elements
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)  # [ROWS]
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    inside = (row < rows)[:, None] & (col < cols)
    x = load_float(x_ptr + row[:, None] * x_stride + col, inside)  # [ROWS, BLOCK]
    mean = tl.sum(x, axis=1) / cols  # [ROWS]
    centred = tl.where(inside, x - mean[:, None], 0.0)
    var = tl.sum(centred * centred, axis=1) / cols
    store_float(mean_ptr + row, mean, row < rows)
    store_float(var_ptr + row, var, row < rows)


@triton.jit
def moments_blocks(x_ptr, mean_ptr, var_ptr, cols, x_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * x_stride
    mean = mean_of_row(x_row, cols, BLOCK)
    var = variance_of_row(x_row, mean, cols, BLOCK)
    tl.store(mean_ptr + row, mean.to(mean_ptr.dtype.element_ty))
    tl.store(var_ptr + row, var.to(var_ptr.dtype.element_ty))


def launch(x, mean, var):
    rows, cols = x.shape
    if cols > WIDEST:
        moments_blocks[(rows,)](x, mean, var, cols, x.stride(0), BLOCK=BLOCK, num_warps=8)
        return
    grid, config = normalised_rows(rows, cols)
    moments_rows[grid](x, mean, var, rows, cols, x.stride(0), **config)
