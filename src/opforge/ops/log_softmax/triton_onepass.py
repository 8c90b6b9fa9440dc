"""Whole rows in registers, several to a program when they are narrow: x is read once and y written once.

moves     2 * rows * cols * itemsize bytes: the least possible
limits    rows up to 65536 wide, the most a block may hold; beyond 32768 registers spill. Wider rows belong to triton_online
"""

import triton
import triton.language as tl

LAYOUTS = ("contiguous", "rows")
SUPPORTS = {"row_fits_one_block": "cols <= 65536"}
# elements of a program that holds several rows, and of a thread: registers against loads in flight; 0: 16, and 32 from 8192 columns on
SPACE = {"tile": (1024, 2048, 4096), "per_thread": (0, 8, 16, 32)}
LIMITS = {"row_fits_the_threads": "cols <= 1024 * per_thread or per_thread in (0, 32)"}
DEFAULT = {"tile": 2048, "per_thread": 0}


@triton.jit
def log_softmax_rows(x_ptr, y_ptr, rows, cols, x_stride, y_stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    # int64: row * stride leaves int32 beyond 32768 x 65536 elements
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    inside = (row < rows) & (col < cols)
    x = tl.load(x_ptr + row * x_stride + col, mask=inside, other=-float("inf"), eviction_policy="evict_first").to(tl.float32)  # [ROWS, BLOCK]
    # a row past the end is -inf throughout and becomes NaN, which is masked off
    shifted = x - tl.max(x, axis=1, keep_dims=True)
    y = shifted - tl.log(tl.sum(tl.exp(shifted), axis=1, keep_dims=True))
    tl.store(y_ptr + row * y_stride + col, y.to(y_ptr.dtype.element_ty), mask=inside, eviction_policy="evict_first")


def launch(x, y, tile, per_thread):
    rows, cols = x.shape
    block = triton.next_power_of_2(cols)
    several = max(1, min(tile // block, triton.next_power_of_2(rows)))
    per_thread = per_thread or (16 if block < 8192 else 32)
    warps = max(1, min(32, block * several // (32 * per_thread)))
    log_softmax_rows[(triton.cdiv(rows, several),)](x, y, rows, cols, x.stride(0), y.stride(0), ROWS=several, BLOCK=block, num_warps=warps)
