"""A block of the row at a time, with a running maximum and a sum that is rescaled when the maximum grows.

source    Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867, 2018
moves     3 * rows * classes * itemsize bytes: x is read twice (the second time from L2 where it fits), dx written once
limits    none in width; exp is computed twice an element. Large blocks keep few rows in flight, so that they stay in L2
"""

import triton
import triton.language as tl

LAYOUTS = ("contiguous", "rows")
# elements of a step, and of a thread
SPACE = {"block": (4096, 8192, 16384, 32768), "per_thread": (16, 32)}
LIMITS = {"at_most_32_warps": "block <= 1024 * per_thread"}
DEFAULT = {"block": 16384, "per_thread": 32}


@triton.jit
def gradient_blocks(x_ptr, target_ptr, dloss_ptr, dx_ptr, classes, x_stride, dx_stride, ignore_index, label_smoothing, BLOCK: tl.constexpr):
    # int64: row * stride leaves int32 beyond 32768 x 65536 elements
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * x_stride
    dx_row = dx_ptr + row * dx_stride
    col = tl.arange(0, BLOCK)
    # every lane keeps a sum of its own, so that blocks share a maximum and nothing else
    peak = -float("inf")
    part = tl.zeros([BLOCK], tl.float32)
    for start in range(0, classes, BLOCK):
        x = tl.load(x_row + start + col, mask=start + col < classes, other=-float("inf"), eviction_policy="evict_last").to(tl.float32)  # [BLOCK]
        higher = tl.maximum(peak, tl.max(x, axis=0))
        # while only -inf was seen the shift is 0, because -inf - -inf is NaN
        shift = tl.where(higher == -float("inf"), 0.0, higher)
        part = part * tl.exp(peak - shift) + tl.exp(x - shift)
        peak = higher
    scale = 1.0 / tl.sum(part, axis=0)
    target = tl.load(target_ptr + row)
    weight = tl.load(dloss_ptr + row).to(tl.float32)
    # no class has such an index: there is no answer
    weight = tl.where((target >= 0) & (target < classes), weight, float("nan"))
    for start in range(0, classes, BLOCK):
        inside = start + col < classes
        x = tl.load(x_row + start + col, mask=inside, other=-float("inf"), eviction_policy="evict_first").to(tl.float32)
        dx = (tl.exp(x - peak) * scale - label_smoothing / classes) * weight - tl.where(start + col == target, (1.0 - label_smoothing) * weight, 0.0)
        dx = tl.where(target == ignore_index, 0.0, dx)
        tl.store(dx_row + start + col, dx.to(dx_ptr.dtype.element_ty), mask=inside, eviction_policy="evict_first")


def launch(x, target, dloss, dx, ignore_index, label_smoothing, block, per_thread):
    rows, classes = x.shape
    block = min(block, max(128, triton.next_power_of_2(classes)))
    gradient_blocks[(rows,)](
        x, target, dloss, dx, classes, x.stride(0), dx.stride(0), ignore_index, float(label_smoothing), BLOCK=block, num_warps=max(1, block // (32 * per_thread))
    )
