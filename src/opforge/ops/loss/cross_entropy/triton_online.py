"""A block of the row at a time, with a running maximum and a sum that is rescaled when the maximum grows; narrow rows
several to a program.

source    Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867, 2018
moves     rows * classes * itemsize bytes: each score is read once, whatever the width
limits    none in width; every step waits for its maximum
"""

import triton
import triton.language as tl

LAYOUTS = ("contiguous", "rows")
# elements of a step, and of a thread
SPACE = {"block": (2048, 4096, 8192, 16384), "per_thread": (16, 32, 64)}
LIMITS = {"at_most_32_warps": "block <= 1024 * per_thread"}
DEFAULT = {"block": 8192, "per_thread": 32}


@triton.jit
def losses(
    x_ptr, target_ptr, loss_ptr, rows, classes, x_stride, ignore_index, label_smoothing,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, SMOOTHED: tl.constexpr,
):  # fmt: skip
    # int64: row * stride leaves int32 beyond 32768 x 65536 elements
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)  # [ROWS]
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    there = row < rows
    x_rows = x_ptr + row[:, None] * x_stride
    # every lane keeps a sum of its own, so that blocks share a maximum and nothing else
    peak = tl.full([ROWS], -float("inf"), tl.float32)
    part = tl.zeros([ROWS, BLOCK], tl.float32)
    plain = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(0, classes, BLOCK):
        inside = there[:, None] & (start + col < classes)
        x = tl.load(x_rows + start + col, mask=inside, other=-float("inf")).to(tl.float32)  # [ROWS, BLOCK]
        higher = tl.maximum(peak, tl.max(x, axis=1))
        # while only -inf was seen the shift is 0, because -inf - -inf is NaN
        shift = tl.where(higher == -float("inf"), 0.0, higher)
        part = part * tl.exp(peak - shift)[:, None] + tl.exp(x - shift[:, None])
        peak = higher
        if SMOOTHED:
            plain += tl.where(inside, x, 0.0)
    log_sum = tl.log(tl.sum(part, axis=1))
    target = tl.load(target_ptr + row, mask=there, other=0)
    counted = target != ignore_index
    valid = (target >= 0) & (target < classes)
    right = tl.load(x_ptr + row * x_stride + target, mask=there & valid, other=0.0).to(tl.float32)
    loss = log_sum - (right - peak)
    if SMOOTHED:
        mean = tl.sum(plain, axis=1) / classes
        loss = (1.0 - label_smoothing) * loss + label_smoothing * (log_sum + (peak - mean))
    # no class has such an index: there is no answer
    loss = tl.where(counted, tl.where(valid, loss, float("nan")), 0.0)
    tl.store(loss_ptr + row, loss.to(loss_ptr.dtype.element_ty), mask=there)


def launch(x, target, loss, ignore_index, label_smoothing, block, per_thread):
    rows, classes = x.shape
    width = min(block, triton.next_power_of_2(classes))
    several = max(1, min(1024 // width, triton.next_power_of_2(rows)))
    warps = max(1, width * several // (32 * per_thread))
    losses[(triton.cdiv(rows, several),)](
        x,
        target,
        loss,
        rows,
        classes,
        x.stride(0),
        ignore_index,
        float(label_smoothing),
        ROWS=several,
        BLOCK=width,
        SMOOTHED=label_smoothing != 0,
        num_warps=warps,
    )
