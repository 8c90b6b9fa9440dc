"""A tile of rows and columns per program; its piece of the bias is read once and added to each of its rows.

moves     (2 * rows + 1) * cols * itemsize bytes, and the bias again from the cache for each tile of rows
limits    16-byte accesses only where rows start 16-byte aligned; a width that is no power of two leaves lanes idle
"""

import triton
import triton.language as tl

from opforge.device.triton.blocks import load_once, store_once
from opforge.device.triton.tiles import LIMITS as LIMITS, SPACE as SPACE, tile_of, tiles_over

LAYOUTS = ("contiguous", "rows")
DEFAULT = {"TILE": 4096, "num_warps": 4}


@triton.jit
def bias_add_tile(x_ptr, bias_ptr, y_ptr, rows, cols, x_stride, y_stride, ROWS: tl.constexpr, COLS: tl.constexpr):
    row, col, inside = tile_of(rows, cols, ROWS, COLS)
    bias = tl.load(bias_ptr + col, mask=col < cols).to(tl.float32)  # [COLS]
    x = load_once(x_ptr + row[:, None] * x_stride + col[None, :], inside)  # [ROWS, COLS], float32
    store_once(y_ptr + row[:, None] * y_stride + col[None, :], x + bias[None, :], inside)


def launch(x, bias, y, *, TILE, num_warps):
    rows, cols = x.shape
    grid, sides = tiles_over(rows, cols, TILE)
    bias_add_tile[grid](x, bias, y, rows, cols, x.stride(0), y.stride(0), **sides, num_warps=num_warps)
