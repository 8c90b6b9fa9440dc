"""Weights made again from the log-sum-exp: a program for each block of a sequence's keys gathers dk and dv over all
queries of its group, one for each block of its queries gathers dq. No atomics: the same bits each time.

source    Dao, FlashAttention-2, arXiv:2307.08691, 2023, section 3.1
idea      the grid follows from the sizes of the tensors alone, as in attention_varlen; a program finds its sequence by
          a scan of the offsets, and blocks that the mask hides are not read. No length goes to the host
moves     each input once from memory, and from L2 once more for each block of the other side of its sequence
limits    scores are computed in both kernels: 7 products where atomics would need 5
precision float32 products in float32 ("ieee"); 16-bit weights and slopes are rounded to the dtype before a product
"""

import math

import torch
import triton
import triton.language as tl

from opforge.device.triton.attention import FAR, LEAST
from opforge.device.triton.attention_backward import fitted, kept_of, tile, weights_and_slopes
from opforge.device.triton.attention_varlen import MOST_SCANNED, sequence_of

LAYOUTS = ("contiguous", "rows", "strided")
SPACE = {"BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (16, 32, 64, 128), "num_warps": (4, 8), "num_stages": (1, 2, 3)}
LIMITS = {
    "sums_fit_registers": "BLOCK_N * (next_pow2(head_dim) + next_pow2(value_dim) + 2 * BLOCK_M) <= 16384 * num_warps "
    "and BLOCK_M * (next_pow2(head_dim) + 2 * BLOCK_N) <= 16384 * num_warps",
    "stages_fit_shared_memory": "(BLOCK_M + BLOCK_N) * num_stages * (next_pow2(head_dim) + next_pow2(value_dim)) * "
    "itemsize <= shared_bytes_per_block",
}
SUPPORTS = {"a_block_fits": "max(16, next_pow2(head_dim)) + max(16, next_pow2(value_dim)) <= 1536"}
DEFAULT = {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1}

PLAIN = ["sequences", "heads", "group", "total_q", "total_k", "left", "right", "sc_q", "sc_k"]
"""Numbers that get no variant of their own where 16 divides them, or they are 1: no instruction gets wider by it."""

ROWS_OF_SUMS = 32
"""Rows of a program that sums dout * out."""


@triton.jit
def middles(
    out_ptr, dout_ptr, dlse_ptr, middle_ptr, so_n, so_h, so_e, sg_n, sg_h, sg_e, sd_h, sd_n, total_q, value_dim,
    E: tl.constexpr, WHOLE_E: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Of each row the sum of dout * out, less what arrives for its log-sum-exp: [heads, total_q]."""
    rows, e = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, E)
    h = tl.program_id(1).to(tl.int64)
    line = rows.to(tl.int64)
    real = rows < total_q
    out = tile(out_ptr + h * so_h, rows, e, so_n, so_e, total_q, value_dim, WHOLE_E)
    dout = tile(dout_ptr + h * sg_h, rows, e, sg_n, sg_e, total_q, value_dim, WHOLE_E)
    dlse = tl.load(dlse_ptr + h * sd_h + line * sd_n, mask=real, other=0.0)
    # rounded products: fused into a sum across lanes, one of two lanes would round its own and the other not
    products = tl.fma(out.to(tl.float32), dout.to(tl.float32), 0.0)
    tl.store(middle_ptr + h * total_q + line, tl.sum(products, axis=1) - dlse, mask=real)


@triton.jit
def put(base, values, first, begin, count, h, heads, dim, BLOCK: tl.constexpr, D: tl.constexpr):
    """Store [BLOCK, D] into [rows, heads, dim] from row `first` on: those from `begin` on and below `count`."""
    rows, d = first + tl.arange(0, BLOCK), tl.arange(0, D)
    real = (rows >= begin) & (rows < count)
    at = base + (rows.to(tl.int64) * heads + h)[:, None] * dim + d[None, :]
    tl.store(at, values.to(base.dtype.element_ty), mask=real[:, None] & (d < dim)[None, :])


@triton.jit
def other_side(offsets_ptr, stride, b, rows):
    """(first row, rows, 0.0) of a sequence, or (0, 0, NaN) where its offsets are outside of `rows`: it is added to what
    cannot be computed then.
    """
    first = tl.load(offsets_ptr + b * stride)
    last = tl.load(offsets_ptr + (b + 1) * stride)
    known = (first >= 0) & (last >= first) & (last <= rows)
    return tl.where(known, first, 0), tl.where(known, last - first, 0), tl.where(known, 0.0, float("nan"))


@triton.jit(do_not_specialize=PLAIN)
def of_keys(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, middle_ptr, dk_ptr, dv_ptr, cu_q_ptr, cu_k_ptr, sq_n, sq_h, sq_d, sk_n,
    sk_h, sk_d, sv_n, sv_h, sv_e, sg_n, sg_h, sg_e, sl_h, sl_n, sc_q, sc_k, sequences, heads, group, total_q, total_k,
    head_dim, value_dim, left, right, scale, softcap, BOTTOM: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    WHOLE_D: tl.constexpr, WHOLE_E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAP: tl.constexpr,
    LIMITED: tl.constexpr, SCANNED: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0)
    h = tl.program_id(1).to(tl.int64)
    kv_heads = heads // group
    found, first_slot, wrong = sequence_of(cu_k_ptr, sc_k, sequences, slot, total_k, BLOCK_N, SCANNED)
    # rows behind the last offset are of no sequence, and all are NaN where offsets say nothing
    behind = tl.where(wrong > 0, 0, tl.load(cu_k_ptr + sequences * sc_k))
    if (slot + 1) * BLOCK_N > behind:
        nothing = tl.where(wrong > 0, float("nan"), 0.0)
        at = slot * BLOCK_N
        put(
            dk_ptr, tl.zeros([BLOCK_N, D], tl.float32) + nothing, at, behind, total_k, h, kv_heads, head_dim, BLOCK_N, D
        )
        put(
            dv_ptr,
            tl.zeros([BLOCK_N, E], tl.float32) + nothing,
            at,
            behind,
            total_k,
            h,
            kv_heads,
            value_dim,
            BLOCK_N,
            E,
        )
    b = tl.maximum(found, 0)
    k_first = tl.load(cu_k_ptr + b * sc_k)
    keys = tl.load(cu_k_ptr + (b + 1) * sc_k) - k_first
    first = (slot - first_slot) * BLOCK_N
    if (found >= 0) & (first < keys) & (wrong == 0):
        q_first, queries, lost = other_side(cu_q_ptr, sc_q, b, total_q)
        cols, d, e = first + tl.arange(0, BLOCK_N), tl.arange(0, D), tl.arange(0, E)
        k = tile(k_ptr + k_first.to(tl.int64) * sk_n + h * sk_h, cols, d, sk_n, sk_d, keys, head_dim, WHOLE_D)
        v = tile(v_ptr + k_first.to(tl.int64) * sv_n + h * sv_h, cols, e, sv_n, sv_e, keys, value_dim, WHOLE_E)
        dk, dv = tl.zeros([BLOCK_N, D], tl.float32) + lost, tl.zeros([BLOCK_N, E], tl.float32) + lost
        shift = keys - queries if BOTTOM else 0
        begin = 0
        end = queries
        if LIMITED:
            begin = tl.maximum(0, first - shift - right) // BLOCK_M * BLOCK_M
            end = tl.minimum(queries, tl.maximum(0, first + BLOCK_N - shift + left))
        line = q_first.to(tl.int64)
        for member in range(group):
            head = h * group + member
            q_head = q_ptr + line * sq_n + head * sq_h
            dout_head = dout_ptr + line * sg_n + head * sg_h
            lse_head = lse_ptr + line * sl_n + head * sl_h
            middle_head = middle_ptr + line + head * total_q
            for start in range(begin, end, BLOCK_M):
                rows = start + tl.arange(0, BLOCK_M)
                q = tile(q_head, rows, d, sq_n, sq_d, queries, head_dim, WHOLE_D)
                dout = tile(dout_head, rows, e, sg_n, sg_e, queries, value_dim, WHOLE_E)
                lse, middle = kept_of(lse_head, sl_n, middle_head, rows, queries)
                weights, slopes = weights_and_slopes(
                    q, k, v, dout, lse, middle, rows, cols, shift, left, right, queries, keys, scale, softcap, first, 0,
                    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, CAP, LIMITED, False, False, False, False,
                    BLOCK_N,
                )  # fmt: skip
                dv = tl.dot(tl.trans(weights.to(dout.dtype)), dout, dv, input_precision="ieee")
                dk = tl.dot(tl.trans(slopes.to(q.dtype)), q, dk, input_precision="ieee")
        put(dk_ptr, dk * scale, k_first + first, 0, k_first + keys, h, kv_heads, head_dim, BLOCK_N, D)
        put(dv_ptr, dv, k_first + first, 0, k_first + keys, h, kv_heads, value_dim, BLOCK_N, E)


@triton.jit(do_not_specialize=PLAIN)
def of_queries(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, middle_ptr, dq_ptr, cu_q_ptr, cu_k_ptr, sq_n, sq_h, sq_d, sk_n, sk_h, sk_d,
    sv_n, sv_h, sv_e, sg_n, sg_h, sg_e, sl_h, sl_n, sc_q, sc_k, sequences, heads, group, total_q, total_k, head_dim,
    value_dim, left, right, scale, softcap, BOTTOM: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    WHOLE_D: tl.constexpr, WHOLE_E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAP: tl.constexpr,
    LIMITED: tl.constexpr, SCANNED: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    h = head // group
    found, first_slot, wrong = sequence_of(cu_q_ptr, sc_q, sequences, slot, total_q, BLOCK_M, SCANNED)
    behind = tl.where(wrong > 0, 0, tl.load(cu_q_ptr + sequences * sc_q))
    if (slot + 1) * BLOCK_M > behind:
        nothing = tl.where(wrong > 0, float("nan"), 0.0)
        values = tl.zeros([BLOCK_M, D], tl.float32) + nothing
        put(dq_ptr, values, slot * BLOCK_M, behind, total_q, head, heads, head_dim, BLOCK_M, D)
    b = tl.maximum(found, 0)
    q_first = tl.load(cu_q_ptr + b * sc_q)
    queries = tl.load(cu_q_ptr + (b + 1) * sc_q) - q_first
    # the last queries first: under a causal mask they see the most
    block = tl.cdiv(queries, BLOCK_M) - 1 - (slot - first_slot)
    if (found >= 0) & (block >= 0) & (wrong == 0):
        k_first, keys, lost = other_side(cu_k_ptr, sc_k, b, total_k)
        first = block * BLOCK_M
        rows, d, e = first + tl.arange(0, BLOCK_M), tl.arange(0, D), tl.arange(0, E)
        line = q_first.to(tl.int64)
        q = tile(q_ptr + line * sq_n + head * sq_h, rows, d, sq_n, sq_d, queries, head_dim, WHOLE_D)
        dout = tile(dout_ptr + line * sg_n + head * sg_h, rows, e, sg_n, sg_e, queries, value_dim, WHOLE_E)
        lse_head, middle_head = lse_ptr + line * sl_n + head * sl_h, middle_ptr + line + head * total_q
        lse, middle = kept_of(lse_head, sl_n, middle_head, rows, queries)
        k_head = k_ptr + k_first.to(tl.int64) * sk_n + h * sk_h
        v_head = v_ptr + k_first.to(tl.int64) * sv_n + h * sv_h
        shift = keys - queries if BOTTOM else 0
        begin = 0
        end = keys
        if LIMITED:
            begin = tl.maximum(0, first + shift - left) // BLOCK_N * BLOCK_N
            end = tl.maximum(0, tl.minimum(keys, first + BLOCK_M + shift + right))
        dq = tl.zeros([BLOCK_M, D], tl.float32) + lost
        for start in range(begin, end, BLOCK_N):
            cols = start + tl.arange(0, BLOCK_N)
            k = tile(k_head, cols, d, sk_n, sk_d, keys, head_dim, WHOLE_D)
            v = tile(v_head, cols, e, sv_n, sv_e, keys, value_dim, WHOLE_E)
            _, slopes = weights_and_slopes(
                q, k, v, dout, lse, middle, rows, cols, shift, left, right, queries, keys, scale, softcap, start, 0, 0,
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, CAP, LIMITED, False, False, False, False, BLOCK_N,
            )  # fmt: skip
            dq = tl.dot(slopes.to(k.dtype), k, dq, input_precision="ieee")
        put(dq_ptr, dq * scale, q_first + first, 0, q_first + queries, head, heads, head_dim, BLOCK_M, D)


def launch(
    q, k, v, out, lse, dout, dlse, cu_seqlens_q, cu_seqlens_k, dq, dk, dv, *, scale, causal, window_left, window_right,
    alignment, softcap, BLOCK_M, BLOCK_N, num_warps, num_stages,
):  # fmt: skip
    total_q, heads, head_dim = q.shape
    total_k, kv_heads, value_dim = v.shape
    sequences, far = cu_seqlens_q.shape[0] - 1, FAR.value
    D, E = (max(LEAST, triton.next_power_of_2(size)) for size in (head_dim, value_dim))
    BLOCK_M, BLOCK_N, num_warps, num_stages = fitted(
        q.device, q.element_size(), D, E, BLOCK_M, BLOCK_N, num_warps, num_stages
    )
    middle = torch.empty((heads, total_q), dtype=torch.float32, device=q.device)
    if middle.numel():
        middles[(triton.cdiv(total_q, ROWS_OF_SUMS), heads)](
            out, dout, dlse, middle, *out.stride(), *dout.stride(), *dlse.stride(), total_q, value_dim, E=E,
            WHOLE_E=value_dim == E, BLOCK_M=ROWS_OF_SUMS,
        )  # fmt: skip
    shared = (
        cu_seqlens_q, cu_seqlens_k, *q.stride(), *k.stride(), *v.stride(), *dout.stride(), *lse.stride(),
        cu_seqlens_q.stride(0), cu_seqlens_k.stride(0), sequences, heads, heads // max(kv_heads, 1), total_q, total_k,
        head_dim, value_dim,
        min(window_left, far) if window_left >= 0 else far,
        0 if causal else min(window_right, far) if window_right >= 0 else far,
        scale or 1.0 / math.sqrt(head_dim), softcap or 1.0,
    )  # fmt: skip
    tiles = {
        "BOTTOM": alignment == "bottom_right", "D": D, "E": E, "WHOLE_D": head_dim == D, "WHOLE_E": value_dim == E,
        "BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "CAP": softcap > 0,
        "LIMITED": causal or window_left >= 0 or window_right >= 0,
        "SCANNED": min(MOST_SCANNED, triton.next_power_of_2(max(sequences, 1))), "num_warps": num_warps,
        "num_stages": num_stages,
    }  # fmt: skip
    if dk.numel():
        grid = (total_k // BLOCK_N + min(sequences, total_k), kv_heads)
        of_keys[grid](q, k, v, dout, lse, middle, dk, dv, *shared, **tiles)
    if dq.numel():
        grid = (total_q // BLOCK_M + min(sequences, total_q), heads)
        of_queries[grid](q, k, v, dout, lse, middle, dq, *shared, **tiles)
