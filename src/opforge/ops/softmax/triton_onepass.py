"""Whole rows in registers, several to a program when they are narrow: x is read once and y written once.

moves     2 * rows * cols * itemsize bytes: the least possible
limits    rows up to 65536 wide, the most a block may hold; beyond 32768 registers spill. Wider rows belong to triton_online
"""

import triton
import triton.language as tl

LAYOUTS = ("contiguous", "rows")
SUPPORTS = {"row_fits_one_block": "cols <= 65536"}
TILE = 2048  # elements of a program: 16 registers in each of 4 warps


@triton.jit
def softmax_rows(x_ptr, y_ptr, rows, cols, x_stride, y_stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    # int64: row * stride leaves int32 beyond 32768 x 65536 elements
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    inside = (row < rows) & (col < cols)
    x = tl.load(x_ptr + row * x_stride + col, mask=inside, other=-float("inf")).to(tl.float32)  # [ROWS, BLOCK]
    # a row past the end is -inf throughout and becomes NaN, which is masked off
    numerator = tl.exp(x - tl.max(x, axis=1, keep_dims=True))
    y = numerator / tl.sum(numerator, axis=1, keep_dims=True)
    tl.store(y_ptr + row * y_stride + col, y.to(y_ptr.dtype.element_ty), mask=inside)


def launch(x, y):
    rows, cols = x.shape
    block = triton.next_power_of_2(cols)
    several = max(1, min(TILE // block, triton.next_power_of_2(rows)))
    warps = 4 if block <= 2048 else 8 if block <= 4096 else 16
    softmax_rows[(triton.cdiv(rows, several),)](x, y, rows, cols, x.stride(0), y.stride(0), ROWS=several, BLOCK=block, num_warps=warps)
