"""Attention of packed sequences: which one a block of queries belongs to, its loops over keys, launch."""

import math

import torch
import triton
import triton.language as tl

from opforge.device.triton.attention import FAR, LOG2E, capped_tanh, fitted, rows_of

SPACE = {
    "BLOCK_M": (16, 32, 64, 128),
    "BLOCK_N": (16, 32, 64, 128),
    "num_warps": (4, 8),
    "num_stages": (1, 2, 3, 4),
}
LIMITS = {
    "sums_fit_registers": "BLOCK_M * (BLOCK_N + next_pow2(value_dim)) <= 8192 * num_warps",
    "stages_fit_shared_memory": "(BLOCK_M * next_pow2(head_dim) + num_stages * BLOCK_N * (next_pow2(head_dim) + "
    "next_pow2(value_dim))) * itemsize <= shared_bytes_per_block",
}
MOST_SCANNED = 1024
"""Offsets that a program looks at together."""

DEFAULT = {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2}


@triton.jit
def sequence_of(offsets_ptr, stride, sequences, slot, rows, BLOCK: tl.constexpr, SCANNED: tl.constexpr):
    """(sequence, its first slot, wrong): the last one with queries whose room begins at `slot` or before, or -1 and -1.
    Room for the r-th sequence with queries begins at offset // BLOCK + r: enough for its blocks, wherever it begins.
    `wrong` is 1 where offsets begin elsewhere than at 0, decrease, or end beyond `rows`.
    """
    wrong = 0
    found = -1
    first = -1
    before = 0
    for start in range(0, sequences, SCANNED):
        number = start + tl.arange(0, SCANNED)
        there = number < sequences
        offset = tl.load(offsets_ptr + number * stride, mask=there, other=0)
        after = tl.load(offsets_ptr + (number + 1) * stride, mask=there, other=0)
        some = (there & (after > offset)).to(tl.int32)
        # an offset that does not decrease, from 0 on, is none below 0
        strange = there & ((after < offset) | (after > rows) | ((number == 0) & (offset != 0)))
        wrong = tl.maximum(wrong, tl.max(strange.to(tl.int32), 0))
        begins = offset // BLOCK + before + tl.cumsum(some, 0) - some
        fits = (some > 0) & (begins <= slot)
        found = tl.maximum(found, tl.max(tl.where(fits, number, -1), 0))
        first = tl.maximum(first, tl.max(tl.where(fits, begins, -1), 0))
        before += tl.sum(some, 0)
    return found, first, wrong


@triton.jit
def fill(
    out_ptr, lse_ptr, first, rows, total_q, h, heads, value_dim, value, level, BLOCK_M: tl.constexpr, E: tl.constexpr
):
    """Store `value` and `level` for the BLOCK_M queries from `first` on, those of them that are in `rows` and after."""
    row = first + tl.arange(0, BLOCK_M)
    real = (row >= rows) & (row < total_q)
    line = row.to(tl.int64)
    e = tl.arange(0, E)
    tl.store(lse_ptr + h * total_q + line, tl.full([BLOCK_M], level, tl.float32), mask=real)
    out_at = out_ptr + (line * heads + h)[:, None] * value_dim + e[None, :]
    empty = tl.full([BLOCK_M, E], value, tl.float32).to(out_ptr.dtype.element_ty)
    tl.store(out_at, empty, mask=real[:, None] & (e < value_dim)[None, :])


@triton.jit
def some_keys(
    acc, total, peak, q, k_ptr, v_ptr, place, left, right, keys, head_dim, value_dim, sk_n, sk_d, sv_n, sv_d, scale,
    softcap, first, last, CAP: tl.constexpr, MASKED: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, WHOLE_D: tl.constexpr, WHOLE_E: tl.constexpr,
):  # fmt: skip
    """Keys from `first` up to `last` of a sequence of `keys`, a block at a time; queries stand at `place`."""
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
            v = tl.load(v_at, mask=inside[:, None] & (e < value_dim)[None, :], other=0.0)
        else:
            k = tl.load(k_at) if WHOLE_D else tl.load(k_at, mask=(d < head_dim)[None, :], other=0.0)
            v = tl.load(v_at) if WHOLE_E else tl.load(v_at, mask=(e < value_dim)[None, :], other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
        # scaled after the largest one is taken off: a product before would be fused with that subtraction, whose other
        # side is a rounded product, and what is left of large ones would leave the range of weights
        s = softcap * capped_tanh(s * (scale / softcap)) if CAP else s
        factor = LOG2E if CAP else scale * LOG2E
        if MASKED:
            distance = cols[None, :] - place[:, None]
            s = tl.where((distance >= -left) & (distance <= right) & inside[None, :], s, -float("inf"))
        higher = tl.maximum(peak, tl.max(s, 1))
        # a row that has seen nothing yet keeps -inf: its weights are exp2(-inf - 0) = 0, and no NaN
        base = tl.where(higher == -float("inf"), 0.0, higher)
        weights = tl.exp2((s - base[:, None]) * factor)
        shrink = tl.exp2((peak - base) * factor)
        total = total * shrink + tl.sum(weights, 1)
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        peak = higher
    return acc, total, peak


@triton.jit(do_not_specialize=["sequences", "heads", "group", "total_q", "total_k", "left", "right", "sc_q", "sc_k"])
def blocks(
    q_ptr, k_ptr, v_ptr, cu_q_ptr, cu_k_ptr, out_ptr, lse_ptr, sq_n, sq_h, sq_d, sk_n, sk_h, sk_d, sv_n, sv_h, sv_d,
    sc_q, sc_k, sequences, heads, group, total_q, total_k, head_dim, value_dim, left, right, scale, softcap,
    BOTTOM: tl.constexpr, CAP: tl.constexpr, NEGATIVE: tl.constexpr, LIMITED: tl.constexpr, BEHIND: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, WHOLE_D: tl.constexpr, WHOLE_E: tl.constexpr, SCANNED: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0)
    h = tl.program_id(1).to(tl.int64)
    found, first_slot, wrong = sequence_of(cu_q_ptr, sc_q, sequences, slot, total_q, BLOCK_M, SCANNED)
    # there is a slot for each block of all rows: the rows behind the last offset are 0, and all are NaN where offsets
    # say nothing
    behind = tl.where(wrong > 0, 0, tl.load(cu_q_ptr + sequences * sc_q))
    if (slot + 1) * BLOCK_M > behind:
        value = tl.where(wrong > 0, float("nan"), 0.0)
        level = tl.where(wrong > 0, float("nan"), -float("inf"))
        fill(out_ptr, lse_ptr, slot * BLOCK_M, behind, total_q, h, heads, value_dim, value, level, BLOCK_M, E)
    b = tl.maximum(found, 0)
    q_first = tl.load(cu_q_ptr + b * sc_q)
    queries = tl.load(cu_q_ptr + (b + 1) * sc_q) - q_first
    k_first = tl.load(cu_k_ptr + b * sc_k)
    k_last = tl.load(cu_k_ptr + (b + 1) * sc_k)
    # keys outside of memory are not read, and the queries of their sequence are NaN
    lost = (k_first < 0) | (k_last < k_first) | (k_last > total_k)
    k_first = tl.where(lost, 0, k_first)
    keys = tl.where(lost, 0, k_last - k_first)
    # the last queries first: under a causal mask they see the most
    block = tl.cdiv(queries, BLOCK_M) - 1 - (slot - first_slot)
    if (found >= 0) & (block >= 0) & (wrong == 0):
        rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
        real = rows < queries
        d = tl.arange(0, D)
        e = tl.arange(0, E)
        line = (q_first + rows).to(tl.int64)
        q_at = q_ptr + line[:, None] * sq_n + h * sq_h + d[None, :] * sq_d
        q = tl.load(q_at, mask=real[:, None] & (d < head_dim)[None, :], other=0.0)
        # the largest score is sought before scores are scaled, by |scale|
        if NEGATIVE:
            q = -q
        k_head = k_ptr + k_first.to(tl.int64) * sk_n + (h // group) * sk_h
        v_head = v_ptr + k_first.to(tl.int64) * sv_n + (h // group) * sv_h
        acc = tl.zeros([BLOCK_M, E], dtype=tl.float32)
        total = tl.zeros([BLOCK_M], dtype=tl.float32) + tl.where(lost, float("nan"), 0.0)
        peak = tl.full([BLOCK_M], -float("inf"), dtype=tl.float32)
        shift = keys - queries if BOTTOM else 0
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
            acc, total, peak = some_keys(
                acc, total, peak, q, k_head, v_head, rows + shift, left, right, keys, head_dim, value_dim, sk_n, sk_d,
                sv_n, sv_d, scale, softcap, begin, clear, CAP, True, BLOCK_N, D, E, WHOLE_D, WHOLE_E,
            )  # fmt: skip
        acc, total, peak = some_keys(
            acc, total, peak, q, k_head, v_head, rows + shift, left, right, keys, head_dim, value_dim, sk_n, sk_d,
            sv_n, sv_d, scale, softcap, clear, edge, CAP, False, BLOCK_N, D, E, WHOLE_D, WHOLE_E,
        )  # fmt: skip
        acc, total, peak = some_keys(
            acc, total, peak, q, k_head, v_head, rows + shift, left, right, keys, head_dim, value_dim, sk_n, sk_d,
            sv_n, sv_d, scale, softcap, edge, end, CAP, True, BLOCK_N, D, E, WHOLE_D, WHOLE_E,
        )  # fmt: skip
        # from here on in units of log(2)
        peak = peak * (LOG2E if CAP else scale * LOG2E)
        nothing = total == 0.0
        acc = acc / tl.where(nothing, 1.0, total)[:, None]
        # the maximum is in units of log2: back to the natural logarithm
        lse = tl.where(nothing, -float("inf"), (peak + tl.log2(tl.where(nothing, 1.0, total))) / LOG2E)
        tl.store(lse_ptr + h * total_q + line, lse, mask=real)
        out_at = out_ptr + (line * heads + h)[:, None] * value_dim + e[None, :]
        tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=real[:, None] & (e < value_dim)[None, :])


def launch_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    *,
    scale: float,
    causal: bool,
    window_left: int,
    window_right: int,
    alignment: str,
    softcap: float,
    BLOCK_M: int,
    BLOCK_N: int,
    num_warps: int,
    num_stages: int,
) -> None:
    """Launches `blocks` for tensors of any strides, [tokens, heads, dim]; out and lse contiguous."""
    total_q, heads, head_dim = q.shape
    kv_heads, value_dim = v.shape[1:]
    if not out.numel():
        return
    sequences, far = cu_seqlens_q.shape[0] - 1, FAR.value
    D, E = rows_of(head_dim, value_dim, q.element_size())
    BLOCK_M, BLOCK_N, num_warps, num_stages = fitted(
        q.device, q.element_size(), D, E, BLOCK_M, BLOCK_N, num_warps, num_stages
    )
    blocks[(total_q // BLOCK_M + min(sequences, total_q), heads)](
        q, k, v, cu_seqlens_q, cu_seqlens_k, out, lse, *q.stride(), *k.stride(), *v.stride(), cu_seqlens_q.stride(0),
        cu_seqlens_k.stride(0), sequences, heads, heads // kv_heads, total_q, k.shape[0], head_dim, value_dim,
        min(window_left, far) if window_left >= 0 else far,
        0 if causal else min(window_right, far) if window_right >= 0 else far,
        abs(scale) or 1.0 / math.sqrt(head_dim), softcap or 1.0, BOTTOM=alignment == "bottom_right", CAP=softcap > 0,
        NEGATIVE=scale < 0,
        LIMITED=causal or window_left >= 0 or window_right >= 0, BEHIND=window_left >= 0, BLOCK_M=BLOCK_M,
        BLOCK_N=BLOCK_N, D=D, E=E,
        WHOLE_D=head_dim == D, WHOLE_E=value_dim == E, SCANNED=min(MOST_SCANNED, triton.next_power_of_2(sequences)),
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
