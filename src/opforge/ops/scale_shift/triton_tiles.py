"""A tile of rows and columns per program: rows are channels of an image, or, channels last, positions.

moves     each of x and y once; scale and shift are read from the caches
limits    maps whose size is no power of two leave lanes idle: 49 positions fill 49 of 64
"""

import triton
import triton.language as tl

SPACE = {"TILE": (1024, 2048, 4096, 8192), "num_warps": (4, 8)}
LIMITS = {"every_thread_has_a_vector": "TILE * itemsize >= 16 * 32 * num_warps", "fits_registers": "TILE <= 32 * 32 * num_warps"}
DEFAULT = {"TILE": 4096, "num_warps": 4}


@triton.jit
def scale_shift_tile(x_ptr, scale_ptr, shift_ptr, y_ptr, rows, cols, channels, down, along, ROWS: tl.constexpr, COLS: tl.constexpr):
    # one grid axis, because the others end at 65535
    across = tl.cdiv(cols, COLS)
    tile = tl.program_id(0)
    # int64: row * cols leaves int32 beyond 2^31 elements
    row = (tile // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = (tile % across) * COLS + tl.arange(0, COLS)
    inside = (row < rows)[:, None] & (col < cols)[None, :]
    channel = (row % channels * down)[:, None] + (col * along)[None, :]
    x = tl.load(x_ptr + row[:, None] * cols + col[None, :], mask=inside, eviction_policy="evict_first").to(tl.float32)  # [ROWS, COLS]
    scale = tl.load(scale_ptr + channel, mask=inside).to(tl.float32)
    shift = tl.load(shift_ptr + channel, mask=inside).to(tl.float32)
    y = tl.math.fma(x, scale, shift)
    tl.store(y_ptr + row[:, None] * cols + col[None, :], y.to(y_ptr.dtype.element_ty), mask=inside, eviction_policy="evict_first")


def launch(x, scale, shift, y, *, TILE, num_warps):
    batch, channels, spatial = x.shape
    last = spatial == 1
    # channels last: a row is a position, and the channel is the column
    rows, cols = (batch, channels) if last else (batch * channels, spatial)
    width = min(TILE, triton.next_power_of_2(cols))
    height = TILE // width
    grid = (triton.cdiv(rows, height) * triton.cdiv(cols, width),)
    scale_shift_tile[grid](x, scale, shift, y, rows, cols, channels, 0 if last else 1, 1 if last else 0, ROWS=height, COLS=width, num_warps=num_warps)
