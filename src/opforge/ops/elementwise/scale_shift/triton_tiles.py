"""A tile of rows and columns per program: rows are channels of an image, or, channels last, positions.

moves     each of x and y once; scale and shift are read from the caches
limits    maps whose size is no power of two leave lanes idle: 49 positions fill 49 of 64
"""

import triton
import triton.language as tl

from opforge.device.triton.blocks import load_once, store_once
from opforge.device.triton.tiles import LIMITS as LIMITS, SPACE as SPACE, tile_of, tiles_over

DEFAULT = {"TILE": 4096, "num_warps": 4}


@triton.jit
def scale_shift_tile(
    x_ptr, scale_ptr, shift_ptr, y_ptr, rows, cols, channels, down, along, ROWS: tl.constexpr, COLS: tl.constexpr
):
    row, col, inside = tile_of(rows, cols, ROWS, COLS)
    channel = (row % channels * down)[:, None] + (col * along)[None, :]
    x = load_once(x_ptr + row[:, None] * cols + col[None, :], inside)  # [ROWS, COLS], float32
    scale = tl.load(scale_ptr + channel, mask=inside).to(tl.float32)
    shift = tl.load(shift_ptr + channel, mask=inside).to(tl.float32)
    y = tl.math.fma(x, scale, shift)
    store_once(y_ptr + row[:, None] * cols + col[None, :], y, inside)


def launch(x, scale, shift, y, *, TILE, num_warps):
    batch, channels, spatial = x.shape
    last = spatial == 1
    # channels last: a row is a position, and the channel is the column
    rows, cols = (batch, channels) if last else (batch * channels, spatial)
    grid, sides = tiles_over(rows, cols, TILE)
    scale_shift_tile[grid](
        x, scale, shift, y, rows, cols, channels, 0 if last else 1, 1 if last else 0, **sides, num_warps=num_warps
    )
