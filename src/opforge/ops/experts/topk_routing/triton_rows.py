"""Rows of logits in registers: the largest is taken k times, its first place each time; weights are divided at the end.

moves     logits once, k weights and places a row: the least possible
limits    4096 experts; k steps one after another
"""

import triton
import triton.language as tl

from opforge.device.triton.routing import (
    DEFAULT as DEFAULT,
    LAYOUTS as LAYOUTS,
    LIMITS as LIMITS,
    SPACE as SPACE,
    SUPPORTS as SUPPORTS,
    flags_of,
    load_logits,
    rows_of,
    sizes_of,
)


@triton.jit
def choose(
    logits_ptr, weights_ptr, chosen_ptr, rows, experts, stride, k, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    PLACES: tl.constexpr, SIGMOID: tl.constexpr, NORMALISE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    x, col, inside = load_logits(logits_ptr, row, rows, experts, stride, BLOCK)  # [ROWS, BLOCK]
    top = tl.max(x, axis=1, keep_dims=True)
    total = tl.sum(tl.where(inside, sizes_of(x, top, False, NORMALISE), 0.0), axis=1, keep_dims=True)
    place = tl.arange(0, PLACES)[None, :]
    sizes = tl.zeros([ROWS, PLACES], tl.float32)
    picked = tl.zeros([ROWS, PLACES], tl.int32)
    left = inside
    for i in range(k):
        best = tl.max(tl.where(left, x, -float("inf")), axis=1, keep_dims=True)
        # the first of those that are left, where NaN or -inf leaves none that is as large
        here = tl.min(tl.where(left & ((x == best) | (x != x)), col, BLOCK), axis=1, keep_dims=True)
        here = tl.where(here == BLOCK, tl.min(tl.where(left, col, BLOCK), axis=1, keep_dims=True), here)
        own = tl.sum(tl.where(col == here, x, 0.0), axis=1, keep_dims=True)
        sizes = tl.where(place == i, sizes_of(own, top, SIGMOID, NORMALISE), sizes)
        picked = tl.where(place == i, here, picked)
        left = left & (col != here)
    if NORMALISE:
        sizes = sizes / tl.sum(sizes, axis=1, keep_dims=True)
    elif not SIGMOID:
        sizes = sizes / total
    there = (row < rows) & (place < k)
    tl.store(weights_ptr + row * k + place, sizes, mask=there)
    tl.store(chosen_ptr + row * k + place, picked.to(tl.int64), mask=there)


def launch(logits, weights, chosen, *, k, score, normalise, TILE, num_warps):
    rows, experts = logits.shape
    grid, sizes = rows_of(rows, experts, TILE)
    choose[grid](
        logits, weights, chosen, rows, experts, logits.stride(0), k, PLACES=triton.next_power_of_2(k), **sizes,
        **flags_of(score, normalise), num_warps=num_warps,
    )  # fmt: skip
