"""A program per block of queries walks all keys: scores and dout @ v are made again, and their slopes are the result.

source    Dao, FlashAttention-2, arXiv:2307.08691, 2023, section 3.1
idea      two products and no sums: nothing is carried from block to block, and the row's sum of dout * out is made once
moves     the bias once, dbias once: all else is small beside them, and mostly in L2
limits    blocks that no mask leaves seen are written as 0, without products
precision float32 products in float32 ("ieee"); 16-bit factors are multiplied as they are, slopes rounded once
"""

import functools
import math

import triton
import triton.language as tl

from opforge.device.triton.attention import LOG2E, reach, rows_of, scores_of, seen_of, shared_bytes, shrunk
from opforge.device.triton.attention_sides import arguments_of, joined, kept, keys_of

LAYOUTS = ("contiguous", "rows", "strided")
SUPPORTS = {
    "a_block_fits": "max(16, next_pow2(head_dim)) + max(16, next_pow2(value_dim)) <= 1536",
    "some_stay": "dropout < 1",
}
SPACE = {"BLOCK_M": (32, 64, 128), "BLOCK_N": (32, 64, 128), "num_warps": (4, 8), "num_stages": (1, 2, 3)}
LIMITS = {
    "blocks_fit_registers": "BLOCK_M * (2 * BLOCK_N + next_pow2(value_dim)) <= 16384 * num_warps",
    "stages_fit_shared_memory": "(BLOCK_M + BLOCK_N * num_stages) * (next_pow2(head_dim) + next_pow2(value_dim)) * "
    "itemsize <= shared_bytes_per_block",
    "no_block_beyond_the_lengths": "BLOCK_M <= max(32, 2 * queries) and BLOCK_N <= max(32, 2 * keys)",
}
DEFAULT = {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1}


@triton.jit
def tile(base, rows, cols, row_stride, col_stride, row_count, col_count):
    """[rows, cols] of a matrix, 0 beyond its ends."""
    # int64: a row's place leaves int32 beyond 2^31 elements
    pointers = base + rows[:, None].to(tl.int64) * row_stride + cols[None, :] * col_stride
    return tl.load(pointers, mask=(rows < row_count)[:, None] & (cols < col_count)[None, :], other=0.0)


@triton.jit(do_not_specialize=["seed", "least", "offset"])
def slopes(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, dout_ptr, dlse_ptr, dbias_ptr, sq_b, sq_h, sq_n, sq_d, sk_b, sk_h, sk_n,
    sk_d, sv_b, sv_h, sv_n, sv_e, so_b, so_h, so_n, so_e, sl_b, sl_h, sl_n, sg_b, sg_h, sg_n, sg_e, sd_b, sd_h, sd_n,
    heads, group, queries, keys, head_dim, value_dim, shift, left, right, scale, softcap,
    lengths_ptr, lengths_b, bias_ptr, bias_b, bias_h, bias_n, bias_k, mask_ptr, mask_b, mask_h, mask_n, mask_k,
    slopes_ptr, slopes_h, sinks_ptr, sinks_h, seed, least, offset, grow,
    D: tl.constexpr, E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAP: tl.constexpr,
    LIMITED: tl.constexpr, LENGTHS: tl.constexpr, BIAS: tl.constexpr, MASK: tl.constexpr, ALIBI: tl.constexpr,
    SINKS: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(1) * BLOCK_M
    rows, d, e = first + tl.arange(0, BLOCK_M), tl.arange(0, D), tl.arange(0, E)
    line = tl.program_id(0).to(tl.int64)
    b, head = line // heads, line % heads
    h = head // group
    inside = rows < queries
    q = tile(q_ptr + b * sq_b + head * sq_h, rows, d, sq_n, sq_d, queries, head_dim)
    dout = tile(dout_ptr + b * sg_b + head * sg_h, rows, e, sg_n, sg_e, queries, value_dim)
    out = tile(out_ptr + b * so_b + head * so_h, rows, e, so_n, so_e, queries, value_dim)
    place = rows.to(tl.int64)
    dlse = tl.load(dlse_ptr + b * sd_b + head * sd_h + place * sd_n, mask=inside, other=0.0)
    # rounded products: fused into a sum across lanes, one of two lanes would round its own and the other not, and which
    # of the two sums is kept would be chance
    products = tl.fma(out.to(tl.float32), dout.to(tl.float32), 0.0)
    middle = tl.sum(products, axis=1) - dlse
    lse = tl.load(lse_ptr + b * sl_b + head * sl_h + place * sl_n, mask=inside, other=float("inf"))
    # a row that sees nothing has no weights
    lse = tl.where(lse == -float("inf"), float("inf"), lse * LOG2E)
    there = keys_of(lengths_ptr, lengths_b, b, keys, LENGTHS)
    mask_at, slope = 0, 0.0
    if MASK:
        mask_at = mask_ptr + b * mask_b + head * mask_h
    if ALIBI:
        slope = tl.load(slopes_ptr + head * slopes_h)
    for start in range(0, keys, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        steep = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        met = start < there
        if LIMITED:
            met = met & (start <= first + BLOCK_M - 1 + shift + right) & (start + BLOCK_N > first + shift - left)
        if met:
            k = tile(k_ptr + b * sk_b + h * sk_h, cols, d, sk_n, sk_d, keys, head_dim)
            v = tile(v_ptr + b * sv_b + h * sv_h, cols, e, sv_n, sv_e, keys, value_dim)
            scores = joined(
                scores_of(q, k, scale, softcap, CAP), rows, cols, shift, queries, keys,
                bias_ptr + b * bias_b + head * bias_h, bias_n, bias_k, mask_at, mask_n, mask_k, slope, BIAS, MASK,
                ALIBI,
            )  # fmt: skip
            seen = (cols < there)[None, :] & inside[:, None]
            if LIMITED:
                seen = seen & seen_of(rows, cols, shift, left, right)
            weights = tl.where(seen, tl.exp2(scores - lse[:, None]), 0.0)
            inner = tl.dot(dout, tl.trans(v), input_precision="ieee")
            if DROPOUT:
                keep = kept(rows, start, b, head, seed, least, offset, BLOCK_N)
                inner = tl.where(keep, inner * grow, 0.0)
            steep = weights * (inner - middle[:, None])
        at = dbias_ptr + (line * queries + place)[:, None] * keys + cols[None, :]
        tl.store(at, steep.to(dbias_ptr.dtype.element_ty), mask=inside[:, None] & (cols < keys)[None, :])


@functools.cache
def fitted(device, itemsize, D, E, block_m, block_n, num_warps, num_stages):
    """`shrunk` for rows of D and E elements: LIMITS speak of those that a config was chosen for, this of all others.
    Products of float32 are unrolled multiplications, which want a quarter of the sums.
    """
    most, sums = shared_bytes(device), 16384 // (4 if itemsize == 4 else 1)
    return shrunk(
        lambda m, n, warps: m * (2 * n + E) <= sums * warps,
        lambda m, n, stages: (m + n * stages) * (D + E) * itemsize <= most,
        block_m,
        block_n,
        num_warps,
        num_stages,
    )


def launch(
    q, k, v, out, lse, dout, dlse, bias, key_lengths, mask, alibi_slopes, dbias, *, scale, causal, window_left,
    window_right, alignment, softcap, dropout, seed, offset, BLOCK_M, BLOCK_N, num_warps, num_stages,
):  # fmt: skip
    if not dbias.numel():
        return
    batch, heads, queries, head_dim = q.shape
    kv_heads, keys, value_dim = v.shape[1:]
    shift, left, right, limited = reach(queries, keys, causal, window_left, window_right, alignment)
    # the log-sum-exp knows of the sinks
    beside, flags = arguments_of(q, key_lengths, bias, mask, alibi_slopes, None, dropout, seed, offset)
    D, E = rows_of(head_dim, value_dim, q.element_size())
    BLOCK_M, BLOCK_N, num_warps, num_stages = fitted(
        q.device, q.element_size(), D, E, BLOCK_M, BLOCK_N, num_warps, num_stages
    )
    slopes[(batch * heads, triton.cdiv(queries, BLOCK_M))](
        q, k, v, out, lse, dout, dlse, dbias, *q.stride(), *k.stride(), *v.stride(), *out.stride(), *lse.stride(),
        *dout.stride(), *dlse.stride(), heads, heads // kv_heads, queries, keys, head_dim, value_dim, shift, left,
        right, scale or 1.0 / math.sqrt(head_dim), softcap or 1.0, *beside, D=D, E=E, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
        CAP=softcap > 0, LIMITED=limited, num_warps=num_warps, num_stages=num_stages, **flags,
    )  # fmt: skip
