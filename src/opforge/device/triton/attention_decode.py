"""Attention of few queries against a paged cache: parts of a sequence's keys, and the kernel that adds them up."""

import functools
import math

import torch
import triton
import triton.language as tl

from opforge.device.triton.attention import (
    LEAST as LEAST_BLOCK,
    LOG2E,
    UNROLLED_SUMS,
    capped_tanh,
    shared_bytes,
    shrunk,
)
from opforge.device.triton.gemm import multiprocessors

SPACE = {"BLOCK_N": (32, 64, 128), "WAVES": (1, 2, 4, 8), "num_warps": (2, 4, 8), "num_stages": (1, 2, 3, 4, 5)}
LIMITS = {
    "stages_fit_shared_memory": "num_stages * BLOCK_N * (next_pow2(head_dim) + next_pow2(value_dim)) * itemsize "
    "<= shared_bytes_per_block * 7 // 8",
}
DEFAULT = {"BLOCK_N": 64, "WAVES": 4, "num_warps": 4, "num_stages": 4}

FAR = 2**31 - 32
"""A window without a limit: the largest that leaves room for the queries in 32 bits."""

LEAST, MOST = 128, 128
"""Keys of a part at the least, parts of a sequence at the most."""

LONG, NEARLY = 1024, 0.96
"""Keys of a part where there is more than a round of them; what counts as filled as well as the best."""

INVARIANT_LEAST, INVARIANT_MOST, INVARIANT_CONFIG = 256, 64, {"BLOCK_N": 64, "num_warps": 4, "num_stages": 4}
"""The same where the split may depend on nothing but the sequence's own length: on tunables no more than on the batch.
"""

TOGETHER = tl.constexpr(16)
"""Parts that are added up at once."""


@triton.jit
def part_of(span, splits, least, BLOCK: tl.constexpr):
    """How many keys a part of `span` keys has: whole blocks."""
    return tl.maximum(least, tl.cdiv(tl.cdiv(span, splits), BLOCK) * BLOCK)


@triton.jit
def length_of(length_ptr, room):
    """(keys, 0.0), or (0, NaN) for a length that its row of the table has no room for: added to a sum, it makes the
    rows of that sequence NaN.
    """
    length = tl.load(length_ptr)
    known = (length >= 0) & (length <= room)
    return tl.where(known, length, 0), tl.where(known, 0.0, float("nan"))


@triton.jit(do_not_specialize=["pages", "room"])
def parts(
    q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, out_ptr, lse_ptr, sums_ptr, stats_ptr, sq_b, sq_h, sq_n, sq_d, sk_p,
    sk_n, sk_h, sk_d, sv_p, sv_n, sv_h, sv_d, st_b, st_n, sl, kv_heads, group, queries, pages, page, room, head_dim,
    value_dim, left, scale, softcap, splits, least, CAP: tl.constexpr, ALONE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, D: tl.constexpr, E: tl.constexpr, WHOLE_D: tl.constexpr, WHOLE_E: tl.constexpr,
):  # fmt: skip
    b = (tl.program_id(0) // kv_heads).to(tl.int64)
    h = (tl.program_id(0) % kv_heads).to(tl.int64)
    split = tl.program_id(1)
    # row r is query r % queries of head r // queries of the group
    rows = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    real = rows < group * queries
    query = rows % queries
    length, lost = length_of(lengths_ptr + b * sl, room)
    begin = tl.minimum(tl.maximum(length - queries - left, 0), length)
    part = part_of(length - begin, splits, least, BLOCK_N)
    first = begin + split * part
    last = tl.minimum(first + part, length)
    place = length - queries + query
    if ALONE or first < last:
        d = tl.arange(0, D)
        e = tl.arange(0, E)
        q_at = (
            q_ptr + b * sq_b + (h * group + rows // queries)[:, None] * sq_h + query[:, None] * sq_n + d[None, :] * sq_d
        )
        q = tl.load(q_at, mask=real[:, None] & (d < head_dim)[None, :], other=0.0)
        acc = tl.zeros([BLOCK_M, E], dtype=tl.float32)
        total = tl.zeros([BLOCK_M], dtype=tl.float32) + lost
        peak = tl.full([BLOCK_M], -float("inf"), dtype=tl.float32)
        for start in range(first, last, BLOCK_N):
            cols = start + tl.arange(0, BLOCK_N)
            inside = cols < last
            # int64: an element's place in the pages leaves int32
            entry = tl.load(table_ptr + b * st_b + (cols // page) * st_n, mask=inside, other=0).to(tl.int64)
            # an entry that names no page: nothing is read for it, and its rows are NaN
            known = (entry >= 0) & (entry < pages)
            entry = tl.where(known, entry, 0)
            slot = (cols % page).to(tl.int64)
            k_at = k_ptr + h * sk_h + (entry * sk_p + slot * sk_n)[:, None] + d[None, :] * sk_d
            v_at = v_ptr + h * sv_h + (entry * sv_p + slot * sv_n)[:, None] + e[None, :] * sv_d
            if WHOLE_D:
                k = tl.load(k_at, mask=inside[:, None], other=0.0)
            else:
                k = tl.load(k_at, mask=inside[:, None] & (d < head_dim)[None, :], other=0.0)
            if WHOLE_E:
                v = tl.load(v_at, mask=inside[:, None], other=0.0)
            else:
                v = tl.load(v_at, mask=inside[:, None] & (e < value_dim)[None, :], other=0.0)
            s = tl.dot(q, tl.trans(k), input_precision="ieee")
            s = softcap * capped_tanh(s * (scale / softcap)) * LOG2E if CAP else s * (scale * LOG2E)
            distance = place[:, None] - cols[None, :]
            s = tl.where((distance >= 0) & (distance <= left) & inside[None, :], s, -float("inf"))
            s = tl.where(known[None, :], s, float("nan"))
            higher = tl.maximum(peak, tl.max(s, 1))
            # a row that has seen nothing yet keeps -inf: its weights are exp2(-inf - 0) = 0, and no NaN
            base = tl.where(higher == -float("inf"), 0.0, higher)
            weights = tl.exp2(s - base[:, None])
            shrink = tl.exp2(peak - base)
            total = total * shrink + tl.sum(weights, 1)
            acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
            peak = higher
        line = (b * kv_heads + h) * group * queries + rows
        if ALONE:
            nothing = total == 0.0
            out = acc / tl.where(nothing, 1.0, total)[:, None]
            lse = tl.where(nothing, -float("inf"), (peak + tl.log2(tl.where(nothing, 1.0, total))) / LOG2E)
            tl.store(lse_ptr + line, lse, mask=real)
            out_at = out_ptr + line[:, None] * value_dim + e[None, :]
            tl.store(out_at, out.to(out_ptr.dtype.element_ty), mask=real[:, None] & (e < value_dim)[None, :])
        else:
            at = line * splits + split
            tl.store(stats_ptr + at * 2, peak, mask=real)
            tl.store(stats_ptr + at * 2 + 1, total, mask=real)
            sums_at = sums_ptr + at[:, None] * value_dim + e[None, :]
            tl.store(sums_at, acc, mask=real[:, None] & (e < value_dim)[None, :])


@triton.jit(do_not_specialize=["room"])
def together(
    sums_ptr, stats_ptr, lengths_ptr, out_ptr, lse_ptr, sl, rows_each, queries, room, value_dim, left, splits,
    least, BLOCK: tl.constexpr, ROOM: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """One row of queries: the parts that its sequence has, brought to one maximum and added up."""
    line = tl.program_id(0).to(tl.int64)
    length, lost = length_of(lengths_ptr + (line // rows_each) * sl, room)
    span = length - tl.minimum(tl.maximum(length - queries - left, 0), length)
    used = tl.cdiv(span, part_of(span, splits, least, BLOCK))
    s = tl.arange(0, ROOM)
    peaks = tl.load(stats_ptr + (line * splits + s) * 2, mask=s < used, other=-float("inf"))
    totals = tl.load(stats_ptr + (line * splits + s) * 2 + 1, mask=s < used, other=0.0)
    peak = tl.max(peaks, 0)
    base = tl.where(peak == -float("inf"), 0.0, peak)
    total = tl.sum(totals * tl.exp2(peaks - base), 0) + lost
    e = tl.arange(0, E)
    acc = tl.zeros([E], dtype=tl.float32)
    for first in range(0, used, TOGETHER):
        some = first + tl.arange(0, TOGETHER)
        there = some < used
        weights = tl.exp2(tl.load(stats_ptr + (line * splits + some) * 2, mask=there, other=-float("inf")) - base)
        at = sums_ptr + (line * splits + some)[:, None] * value_dim + e[None, :]
        sums = tl.load(at, mask=there[:, None] & (e < value_dim)[None, :], other=0.0)
        acc += tl.sum(sums * weights[:, None], 0)
    nothing = total == 0.0
    out = acc / tl.where(nothing, 1.0, total)
    lse = tl.where(nothing, -float("inf"), (peak + tl.log2(tl.where(nothing, 1.0, total))) / LOG2E)
    tl.store(lse_ptr + line, lse)
    tl.store(out_ptr + line * value_dim + e, out.to(out_ptr.dtype.element_ty), mask=e < value_dim)


def programs_at_once(block_m: int, D: int, E: int, waves: int) -> int:
    """Programs that a multiprocessor runs at once: `waves` of a tile of 16 rows with keys and values of 128 elements
    (128 registers a thread, 38 KB), fewer of larger ones: what the compiler says for sm_90, 2 to 4 of 4.
    """
    wide, tall = D + E > 256, block_m > 16
    return max(1, waves * (2 if wide else 3 if tall else 4) // 4)


@functools.cache
def splits_for(keys: int, programs: int, at_once: int) -> int:
    """Parts of a sequence of up to `keys` keys, where `programs` programs have the same part and the device runs
    `at_once`: the fewest that fill the last round of programs nearly as well as any. One program too many is a round
    of its own: 8 sequences of 8192 keys came to 3.14 TB/s as 576 programs where 528 run at once, to 3.66 as 512 (H200).
    More than one round only of parts of LONG keys.
    """
    most = max(1, min(-(-keys // LEAST), MOST))
    choices = [s for s in range(1, most + 1) if s == 1 or programs * s <= at_once or keys >= s * LONG]
    full = [programs * s / at_once / -(-programs * s // at_once) for s in choices]
    return next(s for s, share in zip(choices, full, strict=True) if share >= NEARLY * max(full))


@functools.cache
def fitted_keys(
    device: torch.device, itemsize: int, D: int, E: int, block_m: int, block_n: int, num_warps: int, num_stages: int
) -> tuple[int, int, int]:
    """(BLOCK_N, num_warps, num_stages): `shrunk` for blocks of `block_m` rows of queries, of what nothing but sizes of
    rows says.
    """
    most, sums = shared_bytes(device) * 7 // 8, UNROLLED_SUMS if itemsize == 4 else 8192
    _, block_n, num_warps, num_stages = shrunk(
        lambda _, n, warps: block_m * (n + E) <= sums * warps,
        lambda _, n, stages: stages * n * (D + E) * itemsize <= most,
        LEAST_BLOCK,
        block_n,
        num_warps,
        num_stages,
    )
    return block_n, num_warps, num_stages


def launch_decode(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    *,
    scale: float,
    window_left: int,
    softcap: float,
    batch_invariant: bool,
    BLOCK_N: int,
    WAVES: int,
    num_warps: int,
    num_stages: int,
) -> None:
    """Launches both kernels for tensors of any strides; out and lse contiguous. Lengths stay on the device: the number
    of parts follows from what the table has room for.
    """
    batch, heads, queries, head_dim = q.shape
    page, kv_heads, value_dim = v_pages.shape[1:]
    if not out.numel():
        return
    left = min(window_left, FAR) if window_left >= 0 else FAR
    room_of_table = block_table.shape[1] * page
    keys = min(room_of_table, left + queries)
    group = heads // kv_heads
    D, E = (max(16, triton.next_power_of_2(size)) for size in (head_dim, value_dim))
    # float32 products keep whole tiles in registers
    block_m = min(max(16, triton.next_power_of_2(group * queries)), 64 if q.element_size() == 2 and E <= 256 else 16)
    tiles = triton.cdiv(group * queries, block_m)
    least = LEAST
    if batch_invariant:
        least = INVARIANT_LEAST
        BLOCK_N, num_warps, num_stages = (INVARIANT_CONFIG[name] for name in ("BLOCK_N", "num_warps", "num_stages"))
    BLOCK_N, num_warps, num_stages = fitted_keys(
        q.device, q.element_size(), D, E, block_m, BLOCK_N, num_warps, num_stages
    )
    if batch_invariant:
        # parts are those of 64 splits, whatever the room: the grid alone follows from it
        splits, room = INVARIANT_MOST, min(INVARIANT_MOST, triton.cdiv(keys, least))
    else:
        at_once = multiprocessors(q) * programs_at_once(block_m, D, E, WAVES)
        splits = room = splits_for(keys, batch * kv_heads * tiles, at_once)
    alone = splits == 1
    lines = batch * heads * queries
    sums = torch.empty(0 if alone else lines * splits * value_dim, dtype=torch.float32, device=q.device)
    stats = torch.empty(0 if alone else lines * splits * 2, dtype=torch.float32, device=q.device)
    parts[(batch * kv_heads, room, tiles)](
        q, k_pages, v_pages, block_table, lengths, out, lse, sums, stats, *q.stride(), *k_pages.stride(),
        *v_pages.stride(), *block_table.stride(), lengths.stride(0), kv_heads, group, queries,
        k_pages.shape[0], page, room_of_table, head_dim, value_dim, left, scale or 1.0 / math.sqrt(head_dim),
        softcap or 1.0, splits, least, CAP=softcap > 0, ALONE=alone, BLOCK_M=block_m, BLOCK_N=BLOCK_N, D=D, E=E,
        WHOLE_D=head_dim == D, WHOLE_E=value_dim == E, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    if not alone:
        together[(lines,)](
            sums, stats, lengths, out, lse, lengths.stride(0), heads * queries, queries, room_of_table, value_dim, left,
            splits, least, BLOCK=BLOCK_N, ROOM=INVARIANT_MOST if batch_invariant else triton.next_power_of_2(splits),
            E=E, num_warps=4,
        )  # fmt: skip
