"""Whole rows of y and dy in registers, several to a program when they are narrow: each is read once and dx written
once.

moves     3 * rows * cols * itemsize bytes: the least possible
limits    rows up to 32768 wide; beyond, registers spill. Wider rows belong to triton_twopass
"""

import triton
import triton.language as tl

from opforge.device.triton.blocks import load_once, store_once
from opforge.device.triton.rows import tile_of_rows, whole_rows

LAYOUTS = ("contiguous", "rows")
SUPPORTS = {"row_fits_one_block": "cols <= 32768"}
# elements of a program that holds several rows, and of a thread: registers against loads in flight
SPACE = {"tile": (1024, 2048, 4096), "per_thread": (8, 16, 32)}
LIMITS = {"row_fits_the_threads": "cols <= 1024 * per_thread or per_thread == 32"}
DEFAULT = {"tile": 1024, "per_thread": 8}


@triton.jit
def gradient_rows(
    y_ptr, dy_ptr, dx_ptr, rows, cols, y_stride, dy_stride, dx_stride, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    row, col, inside = tile_of_rows(rows, cols, ROWS, BLOCK)
    y = load_once(y_ptr + row * y_stride + col, inside, 0.0)  # [ROWS, BLOCK], float32
    dy = load_once(dy_ptr + row * dy_stride + col, inside, 0.0)
    dx = y * (dy - tl.sum(y * dy, axis=1, keep_dims=True))
    store_once(dx_ptr + row * dx_stride + col, dx, inside)


def launch(y, dy, dx, tile, per_thread):
    rows, cols = y.shape
    grid, config = whole_rows(rows, cols, tile, per_thread)
    gradient_rows[grid](y, dy, dx, rows, cols, y.stride(0), dy.stride(0), dx.stride(0), **config)
