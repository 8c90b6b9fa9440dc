"""A block of the row at a time, with a running maximum and a sum that is rescaled when the maximum grows.

source    Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867, 2018
moves     3 * rows * classes * itemsize bytes: x is read twice (the second time from L2 where it fits), dx written once
limits    none in width; exp is computed twice an element. Large blocks keep few rows in flight, so that they stay in L2
"""

import triton
import triton.language as tl

from opforge.device.triton.blocks import load_again, store_once
from opforge.device.triton.online import LIMITS as LIMITS, SPACE as SPACE, peak_and_sum, row_blocks

LAYOUTS = ("contiguous", "rows")
DEFAULT = {"block": 16384, "per_thread": 32}


@triton.jit
def gradient_blocks(
    x_ptr,
    target_ptr,
    dloss_ptr,
    dx_ptr,
    classes,
    x_stride,
    dx_stride,
    ignore_index,
    label_smoothing,
    BLOCK: tl.constexpr,
):
    # int64: row * stride leaves int32 beyond 32768 x 65536 elements
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * x_stride
    dx_row = dx_ptr + row * dx_stride
    col = tl.arange(0, BLOCK)
    peak, total = peak_and_sum(x_row, classes, BLOCK)
    scale = 1.0 / total
    target = tl.load(target_ptr + row)
    weight = tl.load(dloss_ptr + row).to(tl.float32)
    # no class has such an index: there is no answer
    weight = tl.where((target >= 0) & (target < classes), weight, float("nan"))
    for start in range(0, classes, BLOCK):
        inside = start + col < classes
        x = load_again(x_row + start + col, inside, -float("inf"))
        dx = (tl.exp(x - peak) * scale - label_smoothing / classes) * weight - tl.where(
            start + col == target, (1.0 - label_smoothing) * weight, 0.0
        )
        dx = tl.where(target == ignore_index, 0.0, dx)
        store_once(dx_row + start + col, dx, inside)


def launch(x, target, dloss, dx, ignore_index, label_smoothing, block, per_thread):
    rows, classes = x.shape
    gradient_blocks[(rows,)](
        x,
        target,
        dloss,
        dx,
        classes,
        x.stride(0),
        dx.stride(0),
        ignore_index,
        float(label_smoothing),
        **row_blocks(classes, block, per_thread),
    )
