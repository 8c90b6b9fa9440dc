"""Rows up to 16384 wide stay in registers, several to a program when they are narrow; of wider ones the sum is written and read again.

moves     4 * rows * cols * itemsize bytes up to 16384 columns: the least possible; beyond, the sum is read again (from L2 where it fits)
limits    none in width
"""

import triton
import triton.language as tl

LAYOUTS = ("contiguous", "rows")
WIDEST = 16384  # columns kept in registers: 32 of each thread of 16 warps
TILE = 2048  # elements of a program that takes several rows: 16 registers in each of 4 warps
BLOCK = 4096  # columns read at a time from a wider row


@triton.jit
def add_rmsnorm_rows(
    x_ptr, residual_ptr, weight_ptr, y_ptr, total_ptr, rows, cols, x_stride, residual_stride, y_stride, total_stride, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    # int64: row * stride leaves int32 beyond 32768 x 65536 elements
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    inside = (row < rows) & (col < cols)
    x = tl.load(x_ptr + row * x_stride + col, mask=inside, other=0.0).to(tl.float32)  # [ROWS, BLOCK]
    residual = tl.load(residual_ptr + row * residual_stride + col, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
    total = x + residual
    tl.store(total_ptr + row * total_stride + col, total.to(total_ptr.dtype.element_ty), mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(total * total, axis=1, keep_dims=True) / cols + eps)  # [ROWS, 1]
    y = total * scale * weight
    tl.store(y_ptr + row * y_stride + col, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def add_rmsnorm_blocks(x_ptr, residual_ptr, weight_ptr, y_ptr, total_ptr, cols, x_stride, residual_stride, y_stride, total_stride, eps, BLOCK: tl.constexpr):
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
        total = tl.load(x_row + start + col, mask=inside, other=0.0).to(tl.float32) + tl.load(residual_row + start + col, mask=inside, other=0.0).to(tl.float32)
        tl.store(total_row + start + col, total.to(total_ptr.dtype.element_ty), mask=inside)
        squares += total * total
    scale = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / cols + eps)
    for start in range(0, cols, BLOCK):
        inside = start + col < cols
        # each thread reads what it wrote itself
        total = tl.load(total_row + start + col, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + start + col, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_row + start + col, (total * scale * weight).to(y_ptr.dtype.element_ty), mask=inside)


def launch(x, residual, weight, y, total, *, eps):
    rows, cols = x.shape
    strides = (x.stride(0), residual.stride(0), y.stride(0), total.stride(0))
    if cols > WIDEST:
        add_rmsnorm_blocks[(rows,)](x, residual, weight, y, total, cols, *strides, eps, BLOCK=BLOCK, num_warps=8)
        return
    block = triton.next_power_of_2(cols)
    several = max(1, min(TILE // block, triton.next_power_of_2(rows)))
    warps = 4 if block <= 2048 else 8 if block <= 4096 else 16
    grid = (triton.cdiv(rows, several),)
    add_rmsnorm_rows[grid](x, residual, weight, y, total, rows, cols, *strides, eps, ROWS=several, BLOCK=block, num_warps=warps)
