"""Weights made again from the log-sum-exp: a program per block of keys gathers dk and dv over all queries of its group,
one per block of queries gathers dq. No atomics: the same bits each time.

source    Dao, FlashAttention-2, arXiv:2307.08691, 2023, section 3.1
idea      the sum of dout * out belongs to a row, and is taken once before; blocks that the mask hides are not read
moves     each input once from memory, and from L2 once more for each block of the other side
limits    scores are computed in both kernels: 7 products where atomics would need 5
precision float32 products in float32 ("ieee"); 16-bit weights and slopes are rounded to the dtype before a product
"""

import math

import torch
import triton
import triton.language as tl

from opforge.device.triton.attention import LEAST, reach
from opforge.device.triton.attention_backward import fitted, kept_of, tile, weights_and_slopes
from opforge.device.triton.attention_sides import arguments_of, keys_of

LAYOUTS = ("contiguous", "rows", "strided")
SPACE = {"BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (16, 32, 64, 128), "num_warps": (4, 8), "num_stages": (1, 2, 3)}
LIMITS = {
    "sums_fit_registers": "BLOCK_N * (next_pow2(head_dim) + next_pow2(value_dim) + 2 * BLOCK_M) <= 16384 * num_warps "
    "and BLOCK_M * (next_pow2(head_dim) + 2 * BLOCK_N) <= 16384 * num_warps",
    "stages_fit_shared_memory": "(BLOCK_M + BLOCK_N) * num_stages * (next_pow2(head_dim) + next_pow2(value_dim)) * "
    "itemsize <= shared_bytes_per_block",
    "no_block_beyond_the_lengths": "BLOCK_M <= max(32, 2 * queries) and BLOCK_N <= max(32, 2 * keys)",
}
SUPPORTS = {
    "a_block_fits": "max(16, next_pow2(head_dim)) + max(16, next_pow2(value_dim)) <= 1536",
    "some_stay": "dropout < 1",
}
DEFAULT = {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1}


PLAIN = ["kv_heads", "queries", "keys", "shift", "left", "right", "lengths_b", "slopes_h", "sinks_h", "seed",
         "least", "offset"]  # fmt: skip
"""Numbers that get no variant of their own where 16 divides them, or they are 1: no instruction gets wider by it."""


@triton.jit
def middles(
    out_ptr, dout_ptr, dlse_ptr, middle_ptr, so_b, so_h, so_n, so_e, sg_b, sg_h, sg_n, sg_e, sd_b, sd_h, sd_n,
    heads, queries, value_dim, E: tl.constexpr, WHOLE_E: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Of each row the sum of dout * out, less what arrives for its log-sum-exp."""
    rows, e = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, E)
    line = tl.program_id(0).to(tl.int64)
    b, h = line // heads, line % heads
    out = tile(out_ptr + b * so_b + h * so_h, rows, e, so_n, so_e, queries, value_dim, WHOLE_E)
    dout = tile(dout_ptr + b * sg_b + h * sg_h, rows, e, sg_n, sg_e, queries, value_dim, WHOLE_E)
    dlse = tl.load(dlse_ptr + b * sd_b + h * sd_h + rows.to(tl.int64) * sd_n, mask=rows < queries, other=0.0)
    # rounded products: fused into a sum across lanes, one of two lanes would round its own and the other not, and which
    # of the two sums is kept would be chance
    products = tl.fma(out.to(tl.float32), dout.to(tl.float32), 0.0)
    middle = tl.sum(products, axis=1) - dlse
    tl.store(middle_ptr + line * queries + rows, middle, mask=rows < queries)


@triton.jit(do_not_specialize=PLAIN)
def of_keys(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, middle_ptr, dk_ptr, dv_ptr, sq_b, sq_h, sq_n, sq_d, sk_b, sk_h, sk_n, sk_d,
    sv_b, sv_h, sv_n, sv_e, sg_b, sg_h, sg_n, sg_e, sl_b, sl_h, sl_n, kv_heads, group, queries, keys, head_dim,
    value_dim, shift, left, right, scale, softcap,
    lengths_ptr, lengths_b, bias_ptr, bias_b, bias_h, bias_n, bias_k, mask_ptr, mask_b, mask_h, mask_n, mask_k,
    slopes_ptr, slopes_h, sinks_ptr, sinks_h, seed, least, offset, grow,
    D: tl.constexpr, E: tl.constexpr, WHOLE_D: tl.constexpr, WHOLE_E: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, CAP: tl.constexpr, LIMITED: tl.constexpr, LENGTHS: tl.constexpr, BIAS: tl.constexpr,
    MASK: tl.constexpr, ALIBI: tl.constexpr, SINKS: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(1) * BLOCK_N
    cols, d, e = first + tl.arange(0, BLOCK_N), tl.arange(0, D), tl.arange(0, E)
    line = tl.program_id(0).to(tl.int64)
    b, h = line // kv_heads, line % kv_heads
    k = tile(k_ptr + b * sk_b + h * sk_h, cols, d, sk_n, sk_d, keys, head_dim, WHOLE_D)
    v = tile(v_ptr + b * sv_b + h * sv_h, cols, e, sv_n, sv_e, keys, value_dim, WHOLE_E)
    dk, dv = tl.zeros([BLOCK_N, D], tl.float32), tl.zeros([BLOCK_N, E], tl.float32)
    # of keys past an entry's length nothing is seen, and their gradients are written as 0
    there = keys_of(lengths_ptr, lengths_b, b, keys, LENGTHS)
    begin = 0
    end = queries
    if LIMITED:
        begin = tl.maximum(0, first - shift - right) // BLOCK_M * BLOCK_M
        end = tl.minimum(queries, tl.maximum(0, first + BLOCK_N - shift + left))
    for member in range(group):
        head = h * group + member
        q_head = q_ptr + b * sq_b + head * sq_h
        dout_head = dout_ptr + b * sg_b + head * sg_h
        lse_head = lse_ptr + b * sl_b + head * sl_h
        middle_head = middle_ptr + (line * group + member) * queries
        for start in range(begin, end, BLOCK_M):
            rows = start + tl.arange(0, BLOCK_M)
            q = tile(q_head, rows, d, sq_n, sq_d, queries, head_dim, WHOLE_D)
            dout = tile(dout_head, rows, e, sg_n, sg_e, queries, value_dim, WHOLE_E)
            lse, middle = kept_of(lse_head, sl_n, middle_head, rows, queries)
            weights, slopes = weights_and_slopes(
                q, k, v, dout, lse, middle, rows, cols, shift, left, right, queries, there, scale, softcap, first, b,
                head, bias_ptr, bias_b, bias_h, bias_n, bias_k, mask_ptr, mask_b, mask_h, mask_n, mask_k, slopes_ptr,
                slopes_h, seed, least, offset, grow, CAP, LIMITED, BIAS, MASK, ALIBI, DROPOUT, BLOCK_N,
            )  # fmt: skip
            dv = tl.dot(tl.trans(weights.to(dout.dtype)), dout, dv, input_precision="ieee")
            dk = tl.dot(tl.trans(slopes.to(q.dtype)), q, dk, input_precision="ieee")
    at = (line * keys + cols)[:, None]
    inside = (cols < keys)[:, None]
    tl.store(
        dk_ptr + at * head_dim + d[None, :],
        (dk * scale).to(dk_ptr.dtype.element_ty),
        mask=inside & (d < head_dim)[None, :],
    )
    tl.store(
        dv_ptr + at * value_dim + e[None, :], dv.to(dv_ptr.dtype.element_ty), mask=inside & (e < value_dim)[None, :]
    )


@triton.jit(do_not_specialize=PLAIN)
def of_queries(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, middle_ptr, dq_ptr, sq_b, sq_h, sq_n, sq_d, sk_b, sk_h, sk_n, sk_d, sv_b,
    sv_h, sv_n, sv_e, sg_b, sg_h, sg_n, sg_e, sl_b, sl_h, sl_n, kv_heads, group, queries, keys, head_dim, value_dim,
    shift, left, right, scale, softcap,
    lengths_ptr, lengths_b, bias_ptr, bias_b, bias_h, bias_n, bias_k, mask_ptr, mask_b, mask_h, mask_n, mask_k,
    slopes_ptr, slopes_h, sinks_ptr, sinks_h, seed, least, offset, grow,
    D: tl.constexpr, E: tl.constexpr, WHOLE_D: tl.constexpr, WHOLE_E: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, CAP: tl.constexpr, LIMITED: tl.constexpr, LENGTHS: tl.constexpr, BIAS: tl.constexpr,
    MASK: tl.constexpr, ALIBI: tl.constexpr, SINKS: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    # the last queries first: under a causal mask they see the most
    first = (tl.cdiv(queries, BLOCK_M) - 1 - tl.program_id(1)) * BLOCK_M
    rows, d, e = first + tl.arange(0, BLOCK_M), tl.arange(0, D), tl.arange(0, E)
    line = tl.program_id(0).to(tl.int64)
    b, head = line // (kv_heads * group), line % (kv_heads * group)
    h = head // group
    q = tile(q_ptr + b * sq_b + head * sq_h, rows, d, sq_n, sq_d, queries, head_dim, WHOLE_D)
    dout = tile(dout_ptr + b * sg_b + head * sg_h, rows, e, sg_n, sg_e, queries, value_dim, WHOLE_E)
    lse, middle = kept_of(lse_ptr + b * sl_b + head * sl_h, sl_n, middle_ptr + line * queries, rows, queries)
    keys = keys_of(lengths_ptr, lengths_b, b, keys, LENGTHS)
    begin = 0
    end = keys
    if LIMITED:
        begin = tl.maximum(0, first + shift - left) // BLOCK_N * BLOCK_N
        end = tl.maximum(0, tl.minimum(keys, first + BLOCK_M + shift + right))
    dq = tl.zeros([BLOCK_M, D], tl.float32)
    for start in range(begin, end, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        k = tile(k_ptr + b * sk_b + h * sk_h, cols, d, sk_n, sk_d, keys, head_dim, WHOLE_D)
        v = tile(v_ptr + b * sv_b + h * sv_h, cols, e, sv_n, sv_e, keys, value_dim, WHOLE_E)
        _, slopes = weights_and_slopes(
            q, k, v, dout, lse, middle, rows, cols, shift, left, right, queries, keys, scale, softcap, start, b, head,
            bias_ptr, bias_b, bias_h, bias_n, bias_k, mask_ptr, mask_b, mask_h, mask_n, mask_k, slopes_ptr, slopes_h,
            seed, least, offset, grow, CAP, LIMITED, BIAS, MASK, ALIBI, DROPOUT, BLOCK_N,
        )  # fmt: skip
        dq = tl.dot(slopes.to(k.dtype), k, dq, input_precision="ieee")
    at = dq_ptr + (line * queries + rows)[:, None] * head_dim + d[None, :]
    tl.store(at, (dq * scale).to(dq_ptr.dtype.element_ty), mask=(rows < queries)[:, None] & (d < head_dim)[None, :])


def launch(
    q, k, v, out, lse, dout, dlse, key_lengths, bias, mask, alibi_slopes, sinks, dq, dk, dv, *, scale, causal,
    window_left, window_right, alignment, softcap, dropout, seed, offset, BLOCK_M, BLOCK_N, num_warps, num_stages,
):  # fmt: skip
    batch, heads, queries, head_dim = q.shape
    kv_heads, keys, value_dim = v.shape[1:]
    shift, left, right, limited = reach(queries, keys, causal, window_left, window_right, alignment)
    D, E = (max(LEAST, triton.next_power_of_2(size)) for size in (head_dim, value_dim))
    BLOCK_M, BLOCK_N, num_warps, num_stages = fitted(
        q.device, q.element_size(), D, E, BLOCK_M, BLOCK_N, num_warps, num_stages
    )
    middle = torch.empty((batch, heads, queries), dtype=torch.float32, device=q.device)
    if middle.numel():
        middles[(batch * heads, triton.cdiv(queries, 32))](
            out, dout, dlse, middle, *out.stride(), *dout.stride(), *dlse.stride(), heads, queries, value_dim, E=E,
            WHOLE_E=value_dim == E, BLOCK_M=32,
        )  # fmt: skip
    # the log-sum-exp knows of the sinks
    beside, flags = arguments_of(q, key_lengths, bias, mask, alibi_slopes, None, dropout, seed, offset)
    shared = (
        *q.stride(), *k.stride(), *v.stride(), *dout.stride(), *lse.stride(), kv_heads, heads // max(kv_heads, 1),
        queries, keys, head_dim, value_dim, shift, left, right, scale or 1.0 / math.sqrt(head_dim), softcap or 1.0,
        *beside,
    )  # fmt: skip
    tiles = {
        "D": D, "E": E, "WHOLE_D": head_dim == D, "WHOLE_E": value_dim == E, "BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N,
        "CAP": softcap > 0, "LIMITED": limited, "num_warps": num_warps, "num_stages": num_stages, **flags,
    }  # fmt: skip
    if dk.numel():
        of_keys[(batch * kv_heads, triton.cdiv(keys, BLOCK_N))](q, k, v, dout, lse, middle, dk, dv, *shared, **tiles)
    if dq.numel():
        of_queries[(batch * heads, triton.cdiv(queries, BLOCK_M))](q, k, v, dout, lse, middle, dq, *shared, **tiles)
