"""Attention's gradients over blocks of queries and keys: weights made again, slopes, and tiles that fit."""

import functools

import triton
import triton.language as tl

from opforge.device.triton.attention import LOG2E, scores_of, seen_of, shared_bytes, shrunk
from opforge.device.triton.attention_sides import joined, kept


@triton.jit
def tile(base, rows, cols, row_stride, col_stride, row_count, col_count, WHOLE: tl.constexpr):
    """[rows, cols] of a matrix, 0 beyond its ends."""
    # int64: a row's place leaves int32 beyond 2^31 elements
    pointers = base + rows[:, None].to(tl.int64) * row_stride + cols[None, :] * col_stride
    if WHOLE:
        return tl.load(pointers, mask=(rows < row_count)[:, None], other=0.0)
    return tl.load(pointers, mask=(rows < row_count)[:, None] & (cols < col_count)[None, :], other=0.0)


@triton.jit
def weights_and_slopes(
    q, k, v, dout, lse, middle, rows, cols, shift, left, right, queries, keys, scale, softcap, first, b, h, bias_ptr,
    bias_b, bias_h, bias_n, bias_k, mask_ptr, mask_b, mask_h, mask_n, mask_k, slopes_ptr, slopes_h, seed, least, offset,
    grow, CAP: tl.constexpr, LIMITED: tl.constexpr, BIAS: tl.constexpr, MASK: tl.constexpr, ALIBI: tl.constexpr,
    DROPOUT: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """[BLOCK_M, BLOCK_N] of both, of keys from `first` on, the weights as they meet the values; `lse` in units of
    log(2), +inf where a row sees nothing.
    """
    scores = scores_of(q, k, scale, softcap, CAP)
    if CAP:
        bent = scores / (softcap * LOG2E)
    if BIAS or MASK or ALIBI:
        bias_at, mask_at, slope = 0, 0, 0.0
        if BIAS:
            bias_at = bias_ptr + b * bias_b + h * bias_h
        if MASK:
            mask_at = mask_ptr + b * mask_b + h * mask_h
        if ALIBI:
            slope = tl.load(slopes_ptr + h * slopes_h)
        scores = joined(
            scores, rows, cols, shift, queries, keys, bias_at, bias_n, bias_k, mask_at, mask_n, mask_k, slope, BIAS,
            MASK, ALIBI,
        )  # fmt: skip
    seen = (cols < keys)[None, :] & (rows >= 0)[:, None]
    if LIMITED:
        seen = seen & seen_of(rows, cols, shift, left, right)
    weights = tl.where(seen, tl.exp2(scores - lse[:, None]), 0.0)
    inner = tl.dot(dout, tl.trans(v), input_precision="ieee")
    met = weights
    if DROPOUT:
        keep = kept(rows, first, b, h, seed, least, offset, BLOCK_N)
        met = tl.where(keep, weights * grow, 0.0)
        inner = tl.where(keep, inner * grow, 0.0)
    slopes = weights * (inner - middle[:, None])
    if CAP:
        slopes = slopes * (1 - bent * bent)
    return met, slopes


@triton.jit
def kept_of(lse_ptr, sl_n, middle_ptr, rows, queries):
    """A block's log-sum-exps, in units of log(2), and sums of dout * out."""
    lse = tl.load(lse_ptr + rows.to(tl.int64) * sl_n, mask=rows < queries, other=float("inf"))
    lse = tl.where(lse == -float("inf"), float("inf"), lse * LOG2E)
    return lse, tl.load(middle_ptr + rows, mask=rows < queries, other=0.0)


@functools.cache
def fitted(device, itemsize, D, E, block_m, block_n, num_warps, num_stages):
    """`shrunk` for rows of D and E elements: LIMITS speak of those that a config was chosen for, this of all others.
    Products of float32 are unrolled multiplications, which want a quarter of the sums.
    """
    most, sums = shared_bytes(device), 16384 // (4 if itemsize == 4 else 1)
    return shrunk(
        lambda m, n, warps: max(n * (D + E + 2 * m), m * (D + 2 * n)) <= sums * warps,
        lambda m, n, stages: (m + n) * stages * (D + E) * itemsize <= most,
        block_m,
        block_n,
        num_warps,
        num_stages,
    )
