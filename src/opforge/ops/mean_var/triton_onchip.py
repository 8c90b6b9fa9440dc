"""Rows up to 16384 wide stay in registers, several to a program when they are narrow; wider ones are read block by block.

moves     rows * cols * itemsize bytes up to 16384 columns: the least possible; beyond, x is read twice (from L2 where it fits)
limits    one program per row at most: few, long rows leave most of a GPU idle.
          The variance is a second pass over deviations from the mean, never E[x^2] - E[x]^2
"""

import triton
import triton.language as tl

LAYOUTS = ("contiguous", "rows")
WIDEST = 16384  # columns kept in registers: 32 of each thread of 16 warps
TILE = 2048  # elements of a program that takes several rows: 16 registers in each of 4 warps
BLOCK = 4096  # columns read at a time from a wider row


@triton.jit
def moments_rows(x_ptr, mean_ptr, var_ptr, rows, cols, x_stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    # int64: row * stride leaves int32 beyond 32768 x 65536 elements
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)  # [ROWS]
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    inside = (row < rows)[:, None] & (col < cols)
    x = tl.load(x_ptr + row[:, None] * x_stride + col, mask=inside, other=0.0).to(tl.float32)  # [ROWS, BLOCK]
    mean = tl.sum(x, axis=1) / cols  # [ROWS]
    centred = tl.where(inside, x - mean[:, None], 0.0)
    var = tl.sum(centred * centred, axis=1) / cols
    tl.store(mean_ptr + row, mean.to(mean_ptr.dtype.element_ty), mask=row < rows)
    tl.store(var_ptr + row, var.to(var_ptr.dtype.element_ty), mask=row < rows)


@triton.jit
def moments_blocks(x_ptr, mean_ptr, var_ptr, cols, x_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * x_stride
    col = tl.arange(0, BLOCK)
    # sums stay spread over the lanes until the end: fewer reductions, and smaller rounding errors
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, cols, BLOCK):
        total += tl.load(x_row + start + col, mask=start + col < cols, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / cols
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, cols, BLOCK):
        inside = start + col < cols
        x = tl.load(x_row + start + col, mask=inside, other=0.0).to(tl.float32)
        centred = tl.where(inside, x - mean, 0.0)
        squares += centred * centred
    var = tl.sum(squares, axis=0) / cols
    tl.store(mean_ptr + row, mean.to(mean_ptr.dtype.element_ty))
    tl.store(var_ptr + row, var.to(var_ptr.dtype.element_ty))


def launch(x, mean, var):
    rows, cols = x.shape
    if cols > WIDEST:
        moments_blocks[(rows,)](x, mean, var, cols, x.stride(0), BLOCK=BLOCK, num_warps=8)
        return
    block = triton.next_power_of_2(cols)
    several = max(1, min(TILE // block, triton.next_power_of_2(rows)))
    warps = 4 if block <= 2048 else 8 if block <= 4096 else 16
    moments_rows[(triton.cdiv(rows, several),)](x, mean, var, rows, cols, x.stride(0), ROWS=several, BLOCK=block, num_warps=warps)
