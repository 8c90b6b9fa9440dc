"""Online softmax over FP8 keys in loops whose bounds are the mask; weights are FP8 numbers of up to 2^8.

source    Dao, FlashAttention-2, arXiv:2307.08691; Shah et al., FlashAttention-3, arXiv:2407.08608, section 3.3
idea      exp2 gives weights of up to 2^8 (2^14 for E5M2) instead of 1, so that small ones are normal FP8 numbers; the
          sum of weights has the same factor, which cancels. Products of a block of keys begin at 0 in the tensor core
          and are carried on in float32
moves     q and out once; k and v once for each block of queries, mostly from L2
precision sums of 14 bits within a block of keys, of float32 over blocks; lse is summed from weights before rounding
limits    v lies with its columns side by side, which FP8 tensor cores do not read: Triton turns each block by way of
          registers
"""

import functools
import math

import triton
import triton.language as tl

from opforge.device.triton.attention import (
    LOG2E,
    SUPPORTS as SUPPORTS,
    capped_tanh,
    reach,
    seen_of,
    shared_bytes,
    shrunk,
)
from opforge.device.triton.attention_sides import keys_of

LAYOUTS = ("contiguous", "rows", "strided")
SPACE = {
    "BLOCK_M": (16, 32, 64, 128),
    "BLOCK_N": (32, 64, 128),
    "num_warps": (4, 8),
    "num_stages": (1, 2, 3, 4),
}
LIMITS = {
    "the_device_knows_fp8": "'float8' in capabilities or 'float8_fnuz' in capabilities",
    "sums_fit_registers": "BLOCK_M * (BLOCK_N + 2 * next_pow2(value_dim)) <= 8192 * num_warps",
    "stages_fit_shared_memory": "BLOCK_M * next_pow2(head_dim) + (num_stages + 1) * BLOCK_N * (next_pow2(head_dim) + "
    "next_pow2(value_dim)) <= shared_bytes_per_block",
    "no_block_beyond_the_lengths": "BLOCK_M <= max(16, 2 * queries) and BLOCK_N <= max(32, 2 * keys)",
}
DEFAULT = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}


@triton.jit
def steps(
    acc, total, peak, q, factor, k_ptr, v_ptr, ks_ptr, ks_block, rows, shift, left, right, keys, head_dim, value_dim,
    sk_n, sk_d, sv_n, sv_d, k_block, softcap, first, last, CAP: tl.constexpr, MASKED: tl.constexpr,
    BLOCKWISE: tl.constexpr, LIFT: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    WHOLE_D: tl.constexpr, WHOLE_E: tl.constexpr,
):  # fmt: skip
    """Keys from `first` up to `last`, a block at a time, into what a block of queries keeps. `factor` [M] makes scores
    of products, times log2(e) where there is no cap; `peak` is in units of products, or of capped scores.
    """
    d = tl.arange(0, D)
    e = tl.arange(0, E)
    for start in range(first, last, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        inside = cols < keys
        # int64: a row's place leaves int32 beyond 2^31 elements
        k_at = k_ptr + cols[:, None].to(tl.int64) * sk_n + d[None, :] * sk_d
        v_at = v_ptr + cols[:, None].to(tl.int64) * sv_n + e[None, :] * sv_d
        if MASKED:
            k = tl.load(k_at, mask=inside[:, None] & (d < head_dim)[None, :], other=0.0)
        elif WHOLE_D:
            k = tl.load(k_at)
        else:
            k = tl.load(k_at, mask=(d < head_dim)[None, :], other=0.0)
        # scaled after the largest one is taken off: a product before would be fused with that subtraction, whose other
        # side is a rounded product, and what is left of large ones would leave the range of weights
        s = tl.dot(q, tl.trans(k))
        if BLOCKWISE:
            s = s * tl.load(ks_ptr + cols // k_block * ks_block, mask=inside, other=0.0)[None, :]
            if not CAP:
                # no fused product beyond this
                s = tl.maximum(s, -3.4028234663852886e38, propagate_nan=tl.PropagateNan.ALL)
        if CAP:
            s = softcap * capped_tanh(s * factor[:, None])
            unit = tl.full([q.shape[0]], LOG2E, dtype=tl.float32)
        else:
            unit = factor
        if MASKED:
            s = tl.where(seen_of(rows, cols, shift, left, right) & inside[None, :], s, -float("inf"))
        higher = tl.maximum(peak, tl.max(s, 1))
        # a row that has seen nothing yet keeps -inf: its weights are exp2(-inf - 0) = 0, and no NaN
        base = tl.where(higher == -float("inf"), 0.0, higher)
        weights = tl.exp2((s - base[:, None]) * unit[:, None] + LIFT)
        shrink = tl.exp2((peak - base) * unit)
        total = total * shrink + tl.sum(weights, 1)
        if MASKED:
            v = tl.load(v_at, mask=inside[:, None] & (e < value_dim)[None, :], other=0.0)
        elif WHOLE_E:
            v = tl.load(v_at)
        else:
            v = tl.load(v_at, mask=(e < value_dim)[None, :], other=0.0)
        # not `tl.dot(weights, v, acc)`: that would leave the sums of all keys in the tensor core's 14 bits
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        peak = higher
    return acc, total, peak


# no variant of its own for a number that 16 divides, or for 1, where neither makes an instruction wider
@triton.jit(
    do_not_specialize=[
        "heads",
        "group",
        "queries",
        "keys",
        "shift",
        "left",
        "right",
        "q_block",
        "k_block",
        "qs_b",
        "qs_h",
        "qs_block",
        "ks_b",
        "ks_h",
        "ks_block",
        "vs_b",
        "vs_h",
        "lengths_b",
    ]
)
def forward(
    q_ptr, k_ptr, v_ptr, qs_ptr, ks_ptr, vs_ptr, lengths_ptr, out_ptr, lse_ptr, sq_b, sq_h, sq_n, sq_d, sk_b, sk_h,
    sk_n, sk_d, sv_b, sv_h, sv_n, sv_d, qs_b, qs_h, qs_block, ks_b, ks_h, ks_block, vs_b, vs_h, vs_e, lengths_b,
    heads, group, queries, keys, head_dim, value_dim, shift, left, right, scale, softcap, q_block, k_block,
    CAP: tl.constexpr, NEGATIVE: tl.constexpr, LIMITED: tl.constexpr, BEHIND: tl.constexpr,
    Q_BLOCKWISE: tl.constexpr, K_BLOCKWISE: tl.constexpr, CHANNELS: tl.constexpr, LENGTHS: tl.constexpr,
    LIFT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    WHOLE_D: tl.constexpr, WHOLE_E: tl.constexpr,
):  # fmt: skip
    # the last queries first: under a causal mask they see the most
    block = tl.cdiv(queries, BLOCK_M) - 1 - tl.program_id(1)
    b = (tl.program_id(0) // heads).to(tl.int64)
    h = (tl.program_id(0) % heads).to(tl.int64)
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, D)
    e = tl.arange(0, E)
    q_at = q_ptr + b * sq_b + h * sq_h + rows[:, None].to(tl.int64) * sq_n + d[None, :] * sq_d
    q = tl.load(q_at, mask=(rows < queries)[:, None] & (d < head_dim)[None, :], other=0.0)
    k_head = k_ptr + b * sk_b + (h // group) * sk_h
    v_head = v_ptr + b * sv_b + (h // group) * sv_h
    # the largest score is sought before scores are scaled, by |scale|
    if NEGATIVE:
        q = (-q.to(tl.float32)).to(q.dtype)
    qs_at = qs_ptr + b * qs_b + h * qs_h
    ks_at = ks_ptr + b * ks_b + (h // group) * ks_h
    vs_at = vs_ptr + b * vs_b + (h // group) * vs_h
    factor = tl.full([BLOCK_M], scale, dtype=tl.float32)
    if Q_BLOCKWISE:
        factor = factor * tl.load(qs_at + rows // q_block * qs_block, mask=rows < queries, other=0.0)
    else:
        factor = factor * tl.load(qs_at)
    if not K_BLOCKWISE:
        factor = factor * tl.load(ks_at)
    # where products of scales underflow, scores are as good as 0, while those of unseen keys stay -inf
    factor = factor / softcap if CAP else tl.maximum(factor * LOG2E, 2.0**-120)
    keys = keys_of(lengths_ptr, lengths_b, b, keys, LENGTHS)
    acc = tl.zeros([BLOCK_M, E], dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    peak = tl.full([BLOCK_M], -float("inf"), dtype=tl.float32)
    top = block * BLOCK_M + shift
    bottom = top + BLOCK_M - 1
    begin = 0
    end = keys
    # blocks of keys from `clear` up to `edge` are seen whole by every query of the block
    clear = 0
    edge = keys // BLOCK_N * BLOCK_N
    if LIMITED:
        begin = tl.maximum(top - left, 0) // BLOCK_N * BLOCK_N
        end = tl.maximum(tl.minimum(bottom + right + 1, keys), 0)
        clear = tl.cdiv(tl.maximum(bottom - left, 0), BLOCK_N) * BLOCK_N
        edge = tl.minimum(edge, tl.maximum(top + right + 1, 0) // BLOCK_N * BLOCK_N)
    clear = tl.minimum(tl.maximum(clear, begin), end)
    edge = tl.maximum(edge, clear)
    if BEHIND:
        acc, total, peak = steps(
            acc, total, peak, q, factor, k_head, v_head, ks_at, ks_block, rows, shift, left, right, keys, head_dim,
            value_dim, sk_n, sk_d, sv_n, sv_d, k_block, softcap, begin, clear, CAP, True, K_BLOCKWISE, LIFT, BLOCK_N,
            D, E, WHOLE_D, WHOLE_E,
        )  # fmt: skip
    acc, total, peak = steps(
        acc, total, peak, q, factor, k_head, v_head, ks_at, ks_block, rows, shift, left, right, keys, head_dim,
        value_dim, sk_n, sk_d, sv_n, sv_d, k_block, softcap, clear, edge, CAP, False, K_BLOCKWISE, LIFT, BLOCK_N,
        D, E, WHOLE_D, WHOLE_E,
    )  # fmt: skip
    acc, total, peak = steps(
        acc, total, peak, q, factor, k_head, v_head, ks_at, ks_block, rows, shift, left, right, keys, head_dim,
        value_dim, sk_n, sk_d, sv_n, sv_d, k_block, softcap, edge, end, CAP, True, K_BLOCKWISE, LIFT, BLOCK_N,
        D, E, WHOLE_D, WHOLE_E,
    )  # fmt: skip
    # from here on in units of log(2)
    peak = peak * (LOG2E if CAP else factor)
    nothing = total == 0.0
    acc = acc / tl.where(nothing, 1.0, total)[:, None]
    if CHANNELS:
        acc = acc * tl.load(vs_at + e * vs_e, mask=e < value_dim, other=0.0)[None, :]
    else:
        acc = acc * tl.load(vs_at)
    # the maximum is in units of log2, the weights are 2^LIFT too large: back to the natural logarithm
    lse = tl.where(nothing, -float("inf"), (peak + (tl.log2(tl.where(nothing, 1.0, total)) - LIFT)) / LOG2E)
    line = (b * heads + h) * queries + rows
    tl.store(lse_ptr + line, lse, mask=rows < queries)
    out_at = out_ptr + line[:, None] * value_dim + e[None, :]
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=(rows < queries)[:, None] & (e < value_dim)[None, :])


@functools.cache
def fitted(device, D, E, block_m, block_n, num_warps, num_stages):
    """`shrunk` for rows of D and E elements; a product of FP8 numbers sums 32 terms at the least."""
    most = shared_bytes(device)
    return shrunk(
        lambda m, n, warps: m * (n + 2 * E) <= 8192 * warps,
        lambda m, n, stages: m * D + (stages + 1) * n * (D + E) <= most,
        block_m,
        block_n,
        num_warps,
        num_stages,
        least_n=32,
    )


def launch(
    q, k, v, q_scale, k_scale, v_scale, key_lengths, out, lse, *, scale, causal, window_left, window_right, alignment,
    softcap, q_block, k_block, v_channels, out_dtype, BLOCK_M, BLOCK_N, num_warps, num_stages,
):  # fmt: skip
    batch, heads, queries, head_dim = q.shape
    keys, value_dim = v.shape[2:]
    if not out.numel():
        return
    shift, left, right, limited = reach(queries, keys, causal, window_left, window_right, alignment)
    # FP8 tensor cores multiply 32 terms at a time
    D, E = (max(32, triton.next_power_of_2(size)) for size in (head_dim, value_dim))
    BLOCK_M, BLOCK_N, num_warps, num_stages = fitted(q.device, D, E, BLOCK_M, BLOCK_N, num_warps, num_stages)
    forward[(batch * heads, triton.cdiv(queries, BLOCK_M))](
        q, k, v, q_scale, k_scale, v_scale, key_lengths, out, lse, *q.stride(), *k.stride(), *v.stride(),
        *q_scale.stride(), *k_scale.stride(), *v_scale.stride(),
        0 if key_lengths is None else key_lengths.stride(0), heads, heads // k.shape[1], queries, keys, head_dim,
        value_dim, shift, left, right, abs(scale) or 1.0 / math.sqrt(head_dim), softcap or 1.0, q_block or 1,
        k_block or 1, CAP=softcap > 0, NEGATIVE=scale < 0, LIMITED=limited, BEHIND=window_left >= 0,
        Q_BLOCKWISE=q_block > 0,
        K_BLOCKWISE=k_block > 0, CHANNELS=bool(v_channels),
        LENGTHS=key_lengths is not None, LIFT=8 if str(q.dtype) == "torch.float8_e4m3fn" else 14, BLOCK_M=BLOCK_M,
        BLOCK_N=BLOCK_N, D=D, E=E, WHOLE_D=head_dim == D, WHOLE_E=value_dim == E, num_warps=num_warps,
        num_stages=num_stages,
    )  # fmt: skip
