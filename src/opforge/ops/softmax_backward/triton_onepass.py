"""Whole rows of y and dy in registers, several to a program when they are narrow: each is read once and dx written once.

moves     3 * rows * cols * itemsize bytes: the least possible
limits    rows up to 32768 wide; beyond, registers spill. Wider rows belong to triton_twopass
"""

import triton
import triton.language as tl

LAYOUTS = ("contiguous", "rows")
SUPPORTS = {"row_fits_one_block": "cols <= 32768"}
# elements of a program that holds several rows, and of a thread: registers against loads in flight
SPACE = {"tile": (1024, 2048, 4096), "per_thread": (8, 16, 32)}
LIMITS = {"row_fits_the_threads": "cols <= 1024 * per_thread or per_thread == 32"}
DEFAULT = {"tile": 1024, "per_thread": 8}


@triton.jit
def gradient_rows(y_ptr, dy_ptr, dx_ptr, rows, cols, y_stride, dy_stride, dx_stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    # int64: row * stride leaves int32 beyond 32768 x 65536 elements
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    inside = (row < rows) & (col < cols)
    y = tl.load(y_ptr + row * y_stride + col, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)  # [ROWS, BLOCK]
    dy = tl.load(dy_ptr + row * dy_stride + col, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
    dx = y * (dy - tl.sum(y * dy, axis=1, keep_dims=True))
    tl.store(dx_ptr + row * dx_stride + col, dx.to(dx_ptr.dtype.element_ty), mask=inside, eviction_policy="evict_first")


def launch(y, dy, dx, tile, per_thread):
    rows, cols = y.shape
    block = triton.next_power_of_2(cols)
    several = max(1, min(tile // block, triton.next_power_of_2(rows)))
    warps = max(1, min(32, block * several // (32 * per_thread)))
    grid = (triton.cdiv(rows, several),)
    gradient_rows[grid](y, dy, dx, rows, cols, y.stride(0), dy.stride(0), dx.stride(0), ROWS=several, BLOCK=block, num_warps=warps)
