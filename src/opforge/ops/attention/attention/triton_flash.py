"""A block of queries per program, keys and values block by block with a running maximum; masks are asked only in the
blocks that a diagonal, a window or the end of the keys crosses.

source    Dao, FlashAttention-2, arXiv:2307.08691, 2023
moves     q, k and v once from memory (k and v again from L2 for each block of queries), out and lse once
idea      scores in units of log(2), so that exp2 needs no factor; causal: the longest rows first
limits    on Hopper Triton waits for the products where FlashAttention-3 computes exponentials meanwhile
"""

import math

import triton
import triton.language as tl

from opforge.device.triton.attention import LOG2_E, capped, key_ranges, sees, tile

LAYOUTS = ("contiguous", "rows", "strided")
SUPPORTS = {"heads_fit": "d <= 256 and dv <= 256"}
SPACE = {"BLOCK_M": (64, 128), "BLOCK_N": (32, 64, 128), "num_warps": (4, 8), "num_stages": (2, 3, 4)}
LIMITS = {"rows_for_warps": "BLOCK_M >= 16 * num_warps"}
DEFAULT = {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3}


@triton.jit
def blocks(
    acc, peak, total, q, k_ptr, v_ptr, rows, begin, end, k_row, k_col, v_row, v_col, nk, scale, cap, offset, left,
    right, D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BLOCK_N: tl.constexpr,
    CAP: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    dims, value_dims = tl.arange(0, BD), tl.arange(0, BDV)
    for start in range(begin, end, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        k = tile(k_ptr, cols, dims, k_row, k_col, nk, D, MASKED, BD != D)  # [BLOCK_N, BD]
        scores = capped(tl.dot(q, tl.trans(k), input_precision=PRECISION), scale, cap, CAP)  # [BLOCK_M, BLOCK_N]
        if MASKED:
            scores = tl.where(sees(rows, cols, nk, offset, left, right, LEFT, RIGHT), scores, -float("inf"))
        higher = tl.maximum(peak, tl.max(scores, axis=1))
        shift = higher
        if MASKED:
            # while nothing is seen the shift is 0: -inf - -inf is NaN
            shift = tl.where(higher == -float("inf"), 0.0, higher)
        weights = tl.exp2(scores - shift[:, None])
        kept = tl.exp2(peak - shift)
        total = total * kept + tl.sum(weights, axis=1)
        v = tile(v_ptr, cols, value_dims, v_row, v_col, nk, DV, MASKED, BDV != DV)  # [BLOCK_N, BDV]
        acc = tl.dot(weights.to(v.dtype), v, acc * kept[:, None], input_precision=PRECISION)
        peak = higher
    return acc, peak, total


@triton.jit
def forward(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr,
    q_batch, q_head, q_row, q_col, k_batch, k_head, k_row, k_col, v_batch, v_head, v_row, v_col,
    heads, group, nq, nk, scale, cap, offset, left, right,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, CAP: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    if RIGHT:
        # the last queries see the most keys: they are begun first
        place = tl.num_programs(0) - 1 - place
    head = tl.program_id(1).to(tl.int64)
    entry, query_head = head // (heads * group), head % (heads * group)
    key_head = query_head // group
    first = place * BLOCK_M
    rows, dims = first + tl.arange(0, BLOCK_M), tl.arange(0, BD)
    q = tile(q_ptr + entry * q_batch + query_head * q_head, rows, dims, q_row, q_col, nq, D, True, BD != D)
    k_ptr += entry * k_batch + key_head * k_head
    v_ptr += entry * v_batch + key_head * v_head
    begin, inner, outer, end = key_ranges(first, nk, offset, left, right, BLOCK_M, BLOCK_N, LEFT, RIGHT)
    acc = tl.zeros([BLOCK_M, BDV], tl.float32)
    peak, total = tl.full([BLOCK_M], -float("inf"), tl.float32), tl.zeros([BLOCK_M], tl.float32)
    if LEFT:
        acc, peak, total = blocks(
            acc, peak, total, q, k_ptr, v_ptr, rows, begin, inner, k_row, k_col, v_row, v_col, nk, scale, cap, offset,
            left, right, D, DV, BD, BDV, BLOCK_N, CAP, LEFT, RIGHT, True, PRECISION,
        )  # fmt: skip
    acc, peak, total = blocks(
        acc, peak, total, q, k_ptr, v_ptr, rows, inner, outer, k_row, k_col, v_row, v_col, nk, scale, cap, offset,
        left, right, D, DV, BD, BDV, BLOCK_N, CAP, LEFT, RIGHT, False, PRECISION,
    )  # fmt: skip
    acc, peak, total = blocks(
        acc, peak, total, q, k_ptr, v_ptr, rows, outer, end, k_row, k_col, v_row, v_col, nk, scale, cap, offset,
        left, right, D, DV, BD, BDV, BLOCK_N, CAP, LEFT, RIGHT, True, PRECISION,
    )  # fmt: skip
    nothing = total == 0.0
    # log2(e) was in the scores
    lse = tl.where(nothing, -float("inf"), (peak + tl.log2(total)) * 0.6931471805599453)
    acc = acc / tl.where(nothing, 1.0, total)[:, None]
    there = rows < nq
    value_dims = tl.arange(0, BDV)
    where = (head * nq + rows).to(tl.int64)[:, None] * DV + value_dims[None, :]
    tl.store(out_ptr + where, acc.to(out_ptr.dtype.element_ty), mask=there[:, None] & (value_dims < DV)[None, :])
    tl.store(lse_ptr + head * nq + rows, lse, mask=there)


def launch(
    q, k, v, out, lse, *, scale, causal, align, window_left, window_right, softcap,
    BLOCK_M, BLOCK_N, num_warps, num_stages,
):  # fmt: skip
    batch, query_heads, nq, d = q.shape
    heads, nk, dv = k.shape[1], k.shape[2], v.shape[3]
    if not batch * query_heads * nq:
        return
    right = 0 if causal else window_right
    factor = scale or 1 / math.sqrt(max(d, 1))
    bd, bdv = max(16, triton.next_power_of_2(d)), max(16, triton.next_power_of_2(dv))
    # wide rows: fewer of them at once
    while (BLOCK_M * bd + num_stages * BLOCK_N * (bd + bdv)) * q.element_size() > 200_000 and num_stages > 1:
        if BLOCK_N > 32:
            BLOCK_N //= 2
        else:
            num_stages -= 1
    forward[(triton.cdiv(nq, BLOCK_M), batch * query_heads)](
        q, k, v, out, lse, *q.stride(), *k.stride(), *v.stride(), heads, query_heads // max(heads, 1), nq, nk,
        factor if softcap > 0 else factor * LOG2_E.value, float(softcap), nk - nq if align == "bottom_right" else 0,
        window_left, right, D=d, DV=dv, BD=bd, BDV=bdv, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, CAP=softcap > 0,
        LEFT=window_left >= 0, RIGHT=right >= 0, PRECISION="ieee" if q.element_size() == 4 else "tf32",
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
