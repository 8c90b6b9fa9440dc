"""Whole rows in registers, several to a program when they are narrow: x is read once and dx written once.

moves     2 * rows * classes * itemsize bytes: the least possible
limits    rows up to 65536 wide, the most a block may hold; beyond 32768 registers spill. Wider rows belong to
          triton_online
"""

import triton
import triton.language as tl

from opforge.device.triton.blocks import load_once, store_once
from opforge.device.triton.rows import SPACE as SPACE, tile_of_rows, whole_rows

LAYOUTS = ("contiguous", "rows")
SUPPORTS = {"row_fits_one_block": "classes <= 65536"}
LIMITS = {"row_fits_the_threads": "classes <= 1024 * per_thread or per_thread in (0, 32)"}
DEFAULT = {"tile": 2048, "per_thread": 0}


@triton.jit
def gradients(
    x_ptr, target_ptr, dloss_ptr, dx_ptr, rows, classes, x_stride, dx_stride, ignore_index, label_smoothing,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, col, inside = tile_of_rows(rows, classes, ROWS, BLOCK)
    x = load_once(x_ptr + row * x_stride + col, inside, -float("inf"))  # [ROWS, BLOCK], float32
    numerator = tl.exp(x - tl.max(x, axis=1, keep_dims=True))
    scale = 1.0 / tl.sum(numerator, axis=1, keep_dims=True)
    target = tl.load(target_ptr + row, mask=row < rows, other=0)
    weight = tl.load(dloss_ptr + row, mask=row < rows, other=0.0).to(tl.float32)
    # no class has such an index: there is no answer
    weight = tl.where((target >= 0) & (target < classes), weight, float("nan"))
    dx = (numerator * scale - label_smoothing / classes) * weight - tl.where(
        col == target, (1.0 - label_smoothing) * weight, 0.0
    )
    dx = tl.where(target == ignore_index, 0.0, dx)
    store_once(dx_ptr + row * dx_stride + col, dx, inside)


def launch(x, target, dloss, dx, ignore_index, label_smoothing, tile, per_thread):
    rows, classes = x.shape
    grid, config = whole_rows(rows, classes, tile, per_thread)
    gradients[grid](
        x, target, dloss, dx, rows, classes, x.stride(0), dx.stride(0), ignore_index, float(label_smoothing), **config
    )
