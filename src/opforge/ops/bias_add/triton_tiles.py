"""A tile of rows and columns per program; its piece of the bias is read once and added to each of its rows.

moves     (2 * rows + 1) * cols * itemsize bytes, and the bias again from the cache for each tile of rows
limits    16-byte accesses only where rows start 16-byte aligned; a width that is no power of two leaves lanes idle
"""

import triton
import triton.language as tl

LAYOUTS = ("contiguous", "rows")
SPACE = {"TILE": (1024, 2048, 4096, 8192), "num_warps": (4, 8)}
LIMITS = {"every_thread_has_a_vector": "TILE * itemsize >= 16 * 32 * num_warps", "fits_registers": "TILE <= 32 * 32 * num_warps"}
DEFAULT = {"TILE": 4096, "num_warps": 4}


@triton.jit
def bias_add_tile(x_ptr, bias_ptr, y_ptr, rows, cols, x_stride, y_stride, ROWS: tl.constexpr, COLS: tl.constexpr):
    # one grid axis, because the others end at 65535
    across = tl.cdiv(cols, COLS)
    tile = tl.program_id(0)
    # int64: row * stride leaves int32 beyond 2^31 elements
    row = (tile // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = (tile % across).to(tl.int64) * COLS + tl.arange(0, COLS)
    inside = (row < rows)[:, None] & (col < cols)[None, :]
    bias = tl.load(bias_ptr + col, mask=col < cols).to(tl.float32)  # [COLS]
    x = tl.load(x_ptr + row[:, None] * x_stride + col[None, :], mask=inside, eviction_policy="evict_first").to(tl.float32)  # [ROWS, COLS]
    tl.store(y_ptr + row[:, None] * y_stride + col[None, :], (x + bias[None, :]).to(y_ptr.dtype.element_ty), mask=inside, eviction_policy="evict_first")


def launch(x, bias, y, *, TILE, num_warps):
    rows, cols = x.shape
    width = min(TILE, triton.next_power_of_2(cols))
    height = TILE // width
    grid = (triton.cdiv(rows, height) * triton.cdiv(cols, width),)
    bias_add_tile[grid](x, bias, y, rows, cols, x.stride(0), y.stride(0), ROWS=height, COLS=width, num_warps=num_warps)
