"""Rows up to 16384 wide stay in registers, several to a program when they are narrow; wider ones are read block by block.

moves     2 * rows * cols * itemsize bytes up to 16384 columns: the least possible; beyond, x is read twice (from L2 where it fits)
limits    none in width
"""

import triton
import triton.language as tl

LAYOUTS = ("contiguous", "rows")
WIDEST = 16384  # columns kept in registers: 32 of each thread of 16 warps
TILE = 2048  # elements of a program that takes several rows: 16 registers in each of 4 warps
BLOCK = 4096  # columns read at a time from a wider row


@triton.jit
def rmsnorm_rows(x_ptr, weight_ptr, y_ptr, rows, cols, x_stride, y_stride, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    # int64: row * stride leaves int32 beyond 32768 x 65536 elements
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    inside = (row < rows) & (col < cols)
    x = tl.load(x_ptr + row * x_stride + col, mask=inside, other=0.0).to(tl.float32)  # [ROWS, BLOCK]
    weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1, keep_dims=True) / cols + eps)  # [ROWS, 1]
    y = x * scale * weight
    tl.store(y_ptr + row * y_stride + col, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def rmsnorm_blocks(x_ptr, weight_ptr, y_ptr, cols, x_stride, y_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * x_stride
    y_row = y_ptr + row * y_stride
    col = tl.arange(0, BLOCK)
    # the sum stays spread over the lanes until the end: one reduction, and smaller rounding errors
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, cols, BLOCK):
        x = tl.load(x_row + start + col, mask=start + col < cols, other=0.0).to(tl.float32)
        squares += x * x
    scale = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / cols + eps)
    for start in range(0, cols, BLOCK):
        inside = start + col < cols
        x = tl.load(x_row + start + col, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + start + col, mask=inside, other=0.0).to(tl.float32)
        y = x * scale * weight
        tl.store(y_row + start + col, y.to(y_ptr.dtype.element_ty), mask=inside)


def launch(x, weight, y, *, eps):
    rows, cols = x.shape
    if cols > WIDEST:
        rmsnorm_blocks[(rows,)](x, weight, y, cols, x.stride(0), y.stride(0), eps, BLOCK=BLOCK, num_warps=8)
        return
    block = triton.next_power_of_2(cols)
    several = max(1, min(TILE // block, triton.next_power_of_2(rows)))
    warps = 4 if block <= 2048 else 8 if block <= 4096 else 16
    grid = (triton.cdiv(rows, several),)
    rmsnorm_rows[grid](x, weight, y, rows, cols, x.stride(0), y.stride(0), eps, ROWS=several, BLOCK=block, num_warps=warps)
