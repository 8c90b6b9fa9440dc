"""Weights made again from the chosen logits; what arrived is spread over a row by comparing places.

moves     logits once, k places and gradients a row, dlogits once: the least possible
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
def spread(
    logits_ptr, chosen_ptr, dweights_ptr, dlogits_ptr, rows, experts, stride, chosen_stride, dweights_stride, k,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, SIGMOID: tl.constexpr, NORMALISE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    x, col, inside = load_logits(logits_ptr, row, rows, experts, stride, BLOCK)  # [ROWS, BLOCK]
    mine = tl.zeros([ROWS, BLOCK], tl.int1)
    given = tl.zeros([ROWS, BLOCK], tl.float32)
    for i in range(k):
        here = tl.load(chosen_ptr + row * chosen_stride + i, mask=row < rows, other=-1)
        arrived = tl.load(dweights_ptr + row * dweights_stride + i, mask=row < rows, other=0.0)
        given = tl.where(col == here, arrived, given)
        mine = mine | (col == here)
    # over the chosen alone where they are normalised, over all experts otherwise
    over = inside & mine if NORMALISE else inside
    top = tl.max(tl.where(over, x, -float("inf")), axis=1, keep_dims=True)
    sizes = tl.where(over, sizes_of(x, top, SIGMOID, NORMALISE), 0.0)
    if SIGMOID:
        # 1 - sigmoid, which loses nothing where that is small
        rest = tl.exp(-tl.maximum(x, 0.0)) / (1.0 + tl.exp(-tl.abs(x)))
        if NORMALISE:
            own = sizes / tl.sum(sizes, axis=1, keep_dims=True)
            level = tl.sum(tl.where(mine, own * given, 0.0), axis=1, keep_dims=True)
            dlogits = own * rest * (given - level)
        else:
            dlogits = sizes * rest * given
        dlogits = tl.where(mine, dlogits, 0.0)
    else:
        own = sizes / tl.sum(sizes, axis=1, keep_dims=True)
        level = tl.sum(tl.where(mine, own * given, 0.0), axis=1, keep_dims=True)
        dlogits = tl.where(over, own * (given - level), 0.0)
    tl.store(dlogits_ptr + row * experts + col, dlogits.to(dlogits_ptr.dtype.element_ty), mask=inside)


def launch(logits, chosen, dweights, dlogits, *, k, score, normalise, TILE, num_warps):
    rows, experts = logits.shape
    grid, sizes = rows_of(rows, experts, TILE)
    spread[grid](
        logits, chosen, dweights, dlogits, rows, experts, logits.stride(0), chosen.stride(0), dweights.stride(0), k,
        **sizes, **flags_of(score, normalise), num_warps=num_warps,
    )  # fmt: skip
