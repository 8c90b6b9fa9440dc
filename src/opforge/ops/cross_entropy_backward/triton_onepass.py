"""Whole rows in registers, several to a program when they are narrow: x is read once and dx written once.

moves     2 * rows * classes * itemsize bytes: the least possible
limits    rows up to 65536 wide, the most a block may hold; beyond 32768 registers spill. Wider rows belong to triton_online
"""

import triton
import triton.language as tl

LAYOUTS = ("contiguous", "rows")
SUPPORTS = {"row_fits_one_block": "classes <= 65536"}
# elements of a program that holds several rows, and of a thread: registers against loads in flight; 0: 16, and 32 from 8192 columns on
SPACE = {"tile": (1024, 2048, 4096), "per_thread": (0, 8, 16, 32)}
LIMITS = {"row_fits_the_threads": "classes <= 1024 * per_thread or per_thread in (0, 32)"}
DEFAULT = {"tile": 2048, "per_thread": 0}


@triton.jit
def gradients(
    x_ptr, target_ptr, dloss_ptr, dx_ptr, rows, classes, x_stride, dx_stride, ignore_index, label_smoothing,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # int64: row * stride leaves int32 beyond 32768 x 65536 elements
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    inside = (row < rows) & (col < classes)
    x = tl.load(x_ptr + row * x_stride + col, mask=inside, other=-float("inf"), eviction_policy="evict_first").to(tl.float32)  # [ROWS, BLOCK]
    numerator = tl.exp(x - tl.max(x, axis=1, keep_dims=True))
    scale = 1.0 / tl.sum(numerator, axis=1, keep_dims=True)
    target = tl.load(target_ptr + row, mask=row < rows, other=0)
    weight = tl.load(dloss_ptr + row, mask=row < rows, other=0.0).to(tl.float32)
    # no class has such an index: there is no answer
    weight = tl.where((target >= 0) & (target < classes), weight, float("nan"))
    dx = (numerator * scale - label_smoothing / classes) * weight - tl.where(col == target, (1.0 - label_smoothing) * weight, 0.0)
    dx = tl.where(target == ignore_index, 0.0, dx)
    tl.store(dx_ptr + row * dx_stride + col, dx.to(dx_ptr.dtype.element_ty), mask=inside, eviction_policy="evict_first")


def launch(x, target, dloss, dx, ignore_index, label_smoothing, tile, per_thread):
    rows, classes = x.shape
    block = triton.next_power_of_2(classes)
    several = max(1, min(tile // block, triton.next_power_of_2(rows)))
    per_thread = per_thread or (16 if block < 8192 else 32)
    warps = max(1, min(32, block * several // (32 * per_thread)))
    gradients[(triton.cdiv(rows, several),)](
        x, target, dloss, dx, rows, classes, x.stride(0), dx.stride(0), ignore_index, float(label_smoothing), ROWS=several, BLOCK=block, num_warps=warps
    )
