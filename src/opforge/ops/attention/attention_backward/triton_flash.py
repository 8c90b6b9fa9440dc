"""Weights computed again from the logarithms: a program per block of keys gathers dk and dv over all queries of its
group, another per block of queries gathers dq. No atomics: the same bits each time.

source    Dao, FlashAttention-2, arXiv:2307.08691, 2023, section 3.1
moves     each input once from memory, and again from L2 for each block of the other side; three passes
idea      the sum of dout * out is a row's own, and taken once before
limits    scores are computed twice, once for each of the two kernels: 7 products where atomics would need 5
"""

import math

import torch
import triton
import triton.language as tl

from opforge.device.triton.attention import LOG2_E, capped, sees, tile

LAYOUTS = ("contiguous", "rows", "strided")
SUPPORTS = {"heads_fit": "d <= 256 and dv <= 256"}
SPACE = {"BLOCK_M": (32, 64, 128), "BLOCK_N": (32, 64, 128), "num_warps": (4, 8), "num_stages": (1, 2, 3)}
DEFAULT = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}


@triton.jit
def middles(
    out_ptr, dout_ptr, dlse_ptr, middle_ptr, o_batch, o_head, o_row, o_col, do_batch, do_head, do_row, do_col,
    dl_batch, dl_head, dl_row, heads, nq, DV: tl.constexpr, BDV: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    rows, cols = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BDV)
    place = tl.program_id(1).to(tl.int64)
    entry, head = place // heads, place % heads
    out = tile(out_ptr + entry * o_batch + head * o_head, rows, cols, o_row, o_col, nq, DV, True, BDV != DV)
    dout = tile(dout_ptr + entry * do_batch + head * do_head, rows, cols, do_row, do_col, nq, DV, True, BDV != DV)
    dlse = tl.load(dlse_ptr + entry * dl_batch + head * dl_head + rows * dl_row, mask=rows < nq, other=0.0)
    middle = tl.sum(out.to(tl.float32) * dout.to(tl.float32), axis=1) - dlse
    tl.store(middle_ptr + place * nq + rows, middle, mask=rows < nq)


@triton.jit
def weights_and_slopes(
    q, k, v, dout, lse, middle, rows, cols, nk, scale, cap, offset, left, right,
    CAP: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """[BLOCK_M, BLOCK_N] of both; `lse` in units of log(2), +inf where a row sees nothing."""
    scores = capped(tl.dot(q, tl.trans(k), input_precision=PRECISION), scale, cap, CAP)
    weights = tl.where(sees(rows, cols, nk, offset, left, right, LEFT, RIGHT), tl.exp2(scores - lse[:, None]), 0.0)
    slopes = weights * (tl.dot(dout, tl.trans(v), input_precision=PRECISION) - middle[:, None])
    if CAP:
        ratio = scores / (cap * LOG2_E)
        slopes = slopes * (1 - ratio * ratio)
    return weights, slopes


@triton.jit
def row_of(lse_ptr, l_row, middle_ptr, rows, nq):
    """A block's logarithms, in units of log(2), and sums of dout * out."""
    lse = tl.load(lse_ptr + rows * l_row, mask=rows < nq, other=float("inf"))
    lse = tl.where(lse == -float("inf"), float("inf"), lse * LOG2_E)
    return lse, tl.load(middle_ptr + rows, mask=rows < nq, other=0.0)


@triton.jit
def of_keys(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, middle_ptr, dk_ptr, dv_ptr,
    q_batch, q_head, q_row, q_col, k_batch, k_head, k_row, k_col, v_batch, v_head, v_row, v_col,
    do_batch, do_head, do_row, do_col, l_batch, l_head, l_row, heads, group, nq, nk, scale, factor, cap, offset, left,
    right, D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, CAP: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * BLOCK_N
    cols, dims, value_dims = first + tl.arange(0, BLOCK_N), tl.arange(0, BD), tl.arange(0, BDV)
    place = tl.program_id(1).to(tl.int64)
    entry, head = place // heads, place % heads
    k = tile(k_ptr + entry * k_batch + head * k_head, cols, dims, k_row, k_col, nk, D, True, BD != D)
    v = tile(v_ptr + entry * v_batch + head * v_head, cols, value_dims, v_row, v_col, nk, DV, True, BDV != DV)
    dk, dv = tl.zeros([BLOCK_N, BD], tl.float32), tl.zeros([BLOCK_N, BDV], tl.float32)
    begin, end = 0, nq
    if RIGHT:
        begin = tl.maximum(0, first - offset - right) // BLOCK_M * BLOCK_M
    if LEFT:
        end = tl.minimum(nq, tl.maximum(0, first + BLOCK_N - offset + left))
    for member in range(group):
        query_head = head * group + member
        q_base = q_ptr + entry * q_batch + query_head * q_head
        dout_base = dout_ptr + entry * do_batch + query_head * do_head
        lse_base = lse_ptr + entry * l_batch + query_head * l_head
        middle_base = middle_ptr + (entry * heads * group + query_head) * nq
        for start in range(begin, end, BLOCK_M):
            rows = start + tl.arange(0, BLOCK_M)
            q = tile(q_base, rows, dims, q_row, q_col, nq, D, True, BD != D)
            dout = tile(dout_base, rows, value_dims, do_row, do_col, nq, DV, True, BDV != DV)
            lse, middle = row_of(lse_base, l_row, middle_base, rows, nq)
            weights, slopes = weights_and_slopes(
                q, k, v, dout, lse, middle, rows, cols, nk, scale, cap, offset, left, right, CAP, LEFT, RIGHT, PRECISION
            )
            dv = tl.dot(tl.trans(weights).to(dout.dtype), dout, dv, input_precision=PRECISION)
            dk = tl.dot(tl.trans(slopes).to(q.dtype), q, dk, input_precision=PRECISION)
    there = (cols < nk)[:, None]
    at = (place * nk + cols).to(tl.int64)[:, None]
    dk_at, dv_at = dk_ptr + at * D + dims[None, :], dv_ptr + at * DV + value_dims[None, :]
    tl.store(dk_at, (dk * factor).to(dk_ptr.dtype.element_ty), mask=there & (dims < D)[None, :])
    tl.store(dv_at, dv.to(dv_ptr.dtype.element_ty), mask=there & (value_dims < DV)[None, :])


@triton.jit
def of_queries(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, middle_ptr, dq_ptr,
    q_batch, q_head, q_row, q_col, k_batch, k_head, k_row, k_col, v_batch, v_head, v_row, v_col,
    do_batch, do_head, do_row, do_col, l_batch, l_head, l_row, heads, group, nq, nk, scale, factor, cap, offset, left,
    right, D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, CAP: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    if RIGHT:
        block = tl.num_programs(0) - 1 - block
    first = block * BLOCK_M
    rows, dims, value_dims = first + tl.arange(0, BLOCK_M), tl.arange(0, BD), tl.arange(0, BDV)
    place = tl.program_id(1).to(tl.int64)
    entry, query_head = place // (heads * group), place % (heads * group)
    q = tile(q_ptr + entry * q_batch + query_head * q_head, rows, dims, q_row, q_col, nq, D, True, BD != D)
    dout = tile(
        dout_ptr + entry * do_batch + query_head * do_head, rows, value_dims, do_row, do_col, nq, DV, True, BDV != DV
    )
    lse, middle = row_of(lse_ptr + entry * l_batch + query_head * l_head, l_row, middle_ptr + place * nq, rows, nq)
    k_ptr += entry * k_batch + query_head // group * k_head
    v_ptr += entry * v_batch + query_head // group * v_head
    begin, end = 0, nk
    if RIGHT:
        end = tl.maximum(0, tl.minimum(nk, first + BLOCK_M + offset + right))
    if LEFT:
        begin = tl.maximum(0, first + offset - left) // BLOCK_N * BLOCK_N
    dq = tl.zeros([BLOCK_M, BD], tl.float32)
    for start in range(begin, end, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        k = tile(k_ptr, cols, dims, k_row, k_col, nk, D, True, BD != D)
        v = tile(v_ptr, cols, value_dims, v_row, v_col, nk, DV, True, BDV != DV)
        _, slopes = weights_and_slopes(
            q, k, v, dout, lse, middle, rows, cols, nk, scale, cap, offset, left, right, CAP, LEFT, RIGHT, PRECISION
        )
        dq = tl.dot(slopes.to(k.dtype), k, dq, input_precision=PRECISION)
    where = (place * nq + rows).to(tl.int64)[:, None] * D + dims[None, :]
    tl.store(dq_ptr + where, (dq * factor).to(dq_ptr.dtype.element_ty), mask=(rows < nq)[:, None] & (dims < D)[None, :])


def launch(
    q, k, v, out, lse, dout, dlse, dq, dk, dv, *, scale, causal, align, window_left, window_right, softcap,
    BLOCK_M, BLOCK_N, num_warps, num_stages,
):  # fmt: skip
    batch, query_heads, nq, d = q.shape
    heads, nk, width = k.shape[1], k.shape[2], v.shape[3]
    right = 0 if causal else window_right
    factor = scale or 1 / math.sqrt(max(d, 1))
    bd, bdv = max(16, triton.next_power_of_2(d)), max(16, triton.next_power_of_2(width))
    if max(bd, bdv) * q.element_size() > 256:
        # two accumulators of a block of keys: what does not fit into registers is spilled
        BLOCK_M, BLOCK_N, num_stages = min(BLOCK_M, 32), min(BLOCK_N, 32), 1
    middle = torch.empty((batch, query_heads, nq), dtype=torch.float32, device=q.device)
    if middle.numel():
        middles[(triton.cdiv(nq, 32), batch * query_heads)](
            out, dout, dlse, middle, *out.stride(), *dout.stride(), *dlse.stride(), query_heads, nq,
            DV=width, BDV=bdv, BLOCK_M=32,
        )  # fmt: skip
    shared = (
        *q.stride(), *k.stride(), *v.stride(), *dout.stride(), *lse.stride(),
        heads, query_heads // max(heads, 1), nq, nk,
        factor if softcap > 0 else factor * LOG2_E.value, factor, float(softcap),
        nk - nq if align == "bottom_right" else 0, window_left, right,
    )  # fmt: skip
    tiles = {
        "D": d, "DV": width, "BD": bd, "BDV": bdv, "BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "CAP": softcap > 0,
        "LEFT": window_left >= 0, "RIGHT": right >= 0, "PRECISION": "ieee" if q.element_size() == 4 else "tf32",
        "num_warps": num_warps, "num_stages": num_stages,
    }  # fmt: skip
    if batch * heads * nk:
        of_keys[(triton.cdiv(nk, BLOCK_N), batch * heads)](q, k, v, dout, lse, middle, dk, dv, *shared, **tiles)
    if batch * query_heads * nq:
        of_queries[(triton.cdiv(nq, BLOCK_M), batch * query_heads)](q, k, v, dout, lse, middle, dq, *shared, **tiles)
