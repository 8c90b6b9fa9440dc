"""A block of the row at a time, with a running maximum and a sum that is rescaled when the maximum grows.

source    Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867, 2018
moves     3 * rows * cols * itemsize bytes: x is read twice (the second time from L2 where it fits), y written once
limits    none in width; exp is computed twice an element, once to rescale
"""

import triton
import triton.language as tl

LAYOUTS = ("contiguous", "rows")
BLOCK = 4096  # 16 elements, maxima and sums in each of 8 x 32 threads


@triton.jit
def log_softmax_blocks(x_ptr, y_ptr, cols, x_stride, y_stride, BLOCK: tl.constexpr):
    # int64: row * stride leaves int32 beyond 32768 x 65536 elements
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * x_stride
    y_row = y_ptr + row * y_stride
    col = tl.arange(0, BLOCK)
    # every lane keeps a maximum and a sum of its own, so that blocks need no reduction between them
    top = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, cols, BLOCK):
        x = tl.load(x_row + start + col, mask=start + col < cols, other=-float("inf")).to(tl.float32)  # [BLOCK]
        higher = tl.maximum(top, x)
        # while a lane has seen only -inf its shift is 0, because -inf - -inf is NaN
        shift = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(top - shift) + tl.exp(x - shift)
        top = higher
    peak = tl.max(top, axis=0)
    shift = tl.where(top == -float("inf"), 0.0, top)
    # a lane of -inf alone counts nothing; written so that a peak of -inf leaves 0 and the division NaN
    weight = tl.where(top == -float("inf"), 0.0, tl.exp(shift - peak))
    log_sum = tl.log(tl.sum(total * weight, axis=0))
    for start in range(0, cols, BLOCK):
        inside = start + col < cols
        x = tl.load(x_row + start + col, mask=inside, other=-float("inf")).to(tl.float32)
        y = (x - peak) - log_sum
        tl.store(y_row + start + col, y.to(y_ptr.dtype.element_ty), mask=inside)


def launch(x, y):
    rows, cols = x.shape
    block = min(BLOCK, max(128, triton.next_power_of_2(cols)))
    warps = 4 if block <= 2048 else 8
    log_softmax_blocks[(rows,)](x, y, cols, x.stride(0), y.stride(0), BLOCK=block, num_warps=warps)
