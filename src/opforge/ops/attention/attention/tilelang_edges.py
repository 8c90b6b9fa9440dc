"""TileLang's tiles: T.gemm around an online softmax, in one pipelined loop that masks edge blocks alone.

source    Dao, FlashAttention-2, arXiv:2307.08691
idea      triton_twoloops said in tiles: which thread holds what, the producer's TMA, barriers and wgmma are the
          compiler's. A ring of stages belongs to one loop, so a branch says which blocks are masked: those that not
          every query of a block sees. Blocks that none sees are not read
moves     q and out once; k and v once for each block of queries, mostly from L2
config    BLOCK_M queries by BLOCK_N keys, num_stages of them in flight; smaller blocks where those do not fit
limits    causal masks, windows and softcaps, nothing else beside q, k and v. Sizes and positions have 32 bits. Scale,
          windows, softcap and head dimensions are compiled in. Rows at no multiple of 16 bytes are loaded element by
          element behind masks
precision T.gemm would round float32 to TF32: it is multiplied plainly, as all is on the C target. 16-bit weights are
          rounded to the dtype before they meet v
"""

import math
from functools import partial

import tilelang  # noqa: F401  tvm is importable only after tilelang
import tilelang.language as T
import tvm

from opforge.device.tilelang.formulas import either
from opforge.device.tilelang.tools import both, from_float32, loop, storage, tile, to_float32

SUPPORTS = {
    "nothing_beside": "not (has_key_lengths or has_bias or has_mask or has_alibi_slopes or has_sinks)",
    "no_dropout": "dropout == 0",
    "places_have_32_bits": "batch * kv_heads * max(group * queries, keys) * max(head_dim, value_dim) < 2147483648",
    "blocks_fit_a_grid": "queries <= 2097120",
    "rows_fit_shared_memory": "head_dim <= 256 and value_dim <= 256",
}
SPACE = {"BLOCK_M": (64, 128), "BLOCK_N": (32, 64, 128), "num_stages": (1, 2, 3), "threads": (128, 256)}
LIMITS = {
    "a_warpgroup_has_64_rows": "BLOCK_M * 2 == threads",
    "sums_fit_registers": "BLOCK_M * (3 * BLOCK_N // 2 + value_dim) <= 192 * threads",
    "stages_fit_shared_memory": "(BLOCK_M * head_dim + num_stages * BLOCK_N * (head_dim + value_dim)) * 2 + 1024 <= "
    "shared_bytes_per_block",
}
DEFAULT = {"BLOCK_M": 128, "BLOCK_N": 128, "num_stages": 2, "threads": 256}
UNALIGNED = {"by_tma": False}
"""What becomes of a config where an address is no multiple of 16 bytes."""

LOG2E = 1.4426950408889634
FAR = 2**30
"""A window reaches past all keys from here on, and sums of it and positions have 32 bits."""
ONE = tvm.tirx.IntImm("int32", 1)
LEAST = 16
"""A product on the tensor cores sums a multiple of so many terms."""


def variant(axes, dtype):
    """Head dimensions are sizes of tiles; TMA and tiles without a margin ask for multiples of 16."""
    whole = axes["head_dim"] % LEAST == 0 and axes["value_dim"] % LEAST == 0
    return {"head_dim": axes["head_dim"], "value_dim": axes["value_dim"], "by_tma": whole}


def program(
    *, dtype, target, head_dim, value_dim, by_tma, scale, causal, window_left, window_right, alignment, softcap,
    BLOCK_M, BLOCK_N, num_stages, threads, **_,
):  # fmt: skip
    mask = Mask(causal, window_left, window_right, alignment == "bottom_right")
    scale = scale or 1.0 / math.sqrt(head_dim)
    if target == "c" or dtype == "float32":
        return multiplied_plainly(dtype, target, head_dim, value_dim, mask, scale, softcap, by_tma)
    D, E = (-(-size // LEAST) * LEAST for size in (head_dim, value_dim))
    while BLOCK_N > 32 and (
        BLOCK_M * (3 * BLOCK_N // 2 + E) > 192 * threads or (BLOCK_M * D + num_stages * BLOCK_N * (D + E)) * 2 > 230000
    ):
        BLOCK_N //= 2
    return on_tensor_cores(
        dtype, head_dim, value_dim, D, E, by_tma, mask, scale, softcap, BLOCK_M, BLOCK_N, num_stages, threads
    )


class Mask:
    """Which keys a query sees, of the place of its block among the queries: counts of blocks, and a condition."""

    def __init__(self, causal, left, right, to_last_key):
        self.left = min(left, FAR) if left >= 0 else None
        self.right = 0 if causal else min(right, FAR) if right >= 0 else None
        self.to_last_key = to_last_key

    def shift(self, queries, keys):
        return keys - queries if self.to_last_key else 0

    def bounds(self, first, block_m, block_n, queries, keys):
        """(begin, clear, edge, end) in blocks of keys: those from `clear` up to `edge` are seen whole by all queries
        from `first` on, those before `begin` and from `end` on by none."""
        top = first + self.shift(queries, keys)
        bottom = top + block_m - 1
        begin, end, clear, edge = 0, T.ceildiv(keys, block_n), 0, T.truncdiv(keys, block_n)
        if self.right is not None:
            end = T.ceildiv(T.min(T.max(bottom + self.right + 1, 0), keys), block_n)
            edge = T.min(edge, T.truncdiv(T.max(top + self.right + 1, 0), block_n))
        if self.left is not None:
            begin = T.truncdiv(T.max(top - self.left, 0), block_n)
            clear = T.min(T.max(T.ceildiv(T.max(bottom - self.left, 0), block_n), begin), end)
        return begin, clear, edge, end

    def seen(self, query, key, queries, keys):
        """Whether a query sees a key, which may be past the last."""
        distance = key - query - self.shift(queries, keys)
        found = key < keys
        if self.right is not None:
            found = both(found, distance <= self.right)
        if self.left is not None:
            found = both(found, distance >= -self.left)
        return found


EXP2 = """static __device__ __forceinline__ float opforge_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
"""
"""exp2f asks whether its result is below float32's least normal number: two instructions more for each weight."""


def softmax_macros(each, target, mask, scale, softcap, block_m, block_n, queries, keys):
    """(weigh, finish): macros over the tiles of a block of queries.

    weigh(s, peak, before, base, shrink, part, total, first, key, at_edge)   products become weights, sums go on;
                                                                             masked where `at_edge`
    finish(peak, total, lse, b, h, first)                                    stores lse; total is 1 where it was 0
    """

    def exp2(x):
        return T.exp2(x) if target == "c" else T.call_extern("float32", "opforge_exp2", x)

    # the largest product is sought before it is scaled, and scaled after it was taken off: a compiler fuses a product
    # with a subtraction, and of large ones rounded and unrounded much would be left
    factor = T.float32(LOG2E if softcap > 0 else abs(scale) * LOG2E)
    nothing = -T.infinity("float32")

    def weigh(s, peak, before, base, shrink, part, total, first, key, at_edge):
        if softcap > 0:
            for i, j in each(block_m, block_n):
                # softcap * tanh, right at both ends, where exp is 0 or infinite
                s[i, j] = T.float32(softcap) - T.float32(2 * softcap) / (
                    T.exp(s[i, j] * T.float32(2 * scale / softcap)) + T.float32(1)
                )
        elif scale < 0:
            for i, j in each(block_m, block_n):
                s[i, j] = -s[i, j]
        if at_edge:
            for i, j in each(block_m, block_n):
                s[i, j] = T.if_then_else(mask.seen(first + i, key + j, queries, keys), s[i, j], nothing)
        for i in each(block_m):
            before[i] = peak[i]
        T.reduce_max(s, peak, dim=1, clear=False)
        for i in each(block_m):
            # a row that has seen nothing yet keeps -inf: its weights are exp2(-inf - 0) = 0, and no NaN
            base[i] = T.if_then_else(peak[i] == nothing, T.float32(0), peak[i])
            shrink[i] = exp2((before[i] - base[i]) * factor)
        for i, j in each(block_m, block_n):
            s[i, j] = exp2((s[i, j] - base[i]) * factor)
        T.reduce_sum(s, part, dim=1, clear=True)
        for i in each(block_m):
            total[i] = total[i] * shrink[i] + part[i]

    def finish(peak, total, lse, b, h, first):
        for i in each(block_m):
            if first + i < queries:
                lse[b, h, first + i] = T.if_then_else(
                    total[i] == T.float32(0),
                    nothing,
                    peak[i] * (factor / T.float32(LOG2E)) + T.log(total[i]),
                )
        for i in each(block_m):
            total[i] = T.if_then_else(total[i] == T.float32(0), T.float32(1), total[i])

    return T.macro(weigh), T.macro(finish)


def on_tensor_cores(dtype, head_dim, value_dim, D, E, by_tma, mask, scale, softcap, block_m, block_n, stages, threads):
    batch, heads, kv_heads = T.dynamic("batch"), T.dynamic("heads"), T.dynamic("kv_heads")
    queries, keys = T.dynamic("queries"), T.dynamic("keys")
    weigh, finish = softmax_macros(T.Parallel, "cuda", mask, scale, softcap, block_m, block_n, queries, keys)

    def load(rows, b, h, first, length, size, held, height, width, tma):
        if by_tma:
            T.copy(rows[b, h, first : first + height, 0:width], held, annotations={} if tma else {"disable_tma": True})
        else:
            # zero beyond the rows: zero times whatever lies there could be NaN. One by one: 16 bytes at once would need
            # an address at a multiple of 16
            for i, d in T.Parallel(height, width, coalesced_width=ONE):
                held[i, d] = T.if_then_else(
                    both(first + i < length, d < size), rows[b, h, first + i, d], T.Cast(dtype, 0)
                )

    load = T.macro(load)

    @T.prim_func
    def attention(
        q: T.Tensor((batch, heads, queries, head_dim), dtype),
        k: T.Tensor((batch, kv_heads, keys, head_dim), dtype),
        v: T.Tensor((batch, kv_heads, keys, value_dim), dtype),
        out: T.Tensor((batch, heads, queries, value_dim), dtype),
        lse: T.Tensor((batch, heads, queries), "float32"),
    ):
        with T.Kernel(batch * heads, T.ceildiv(queries, block_m), threads=threads) as (bx, by):
            T.import_source(EXP2)
            query = T.alloc_shared((block_m, D), dtype)
            key = T.alloc_shared((block_n, D), dtype)
            value = T.alloc_shared((block_n, E), dtype)
            result = T.alloc_shared((block_m, E), dtype)
            s = T.alloc_fragment((block_m, block_n), "float32")
            weights = T.alloc_fragment((block_m, block_n), dtype)
            sums = T.alloc_fragment((block_m, E), "float32")
            peak = T.alloc_fragment((block_m,), "float32")
            before = T.alloc_fragment((block_m,), "float32")
            base = T.alloc_fragment((block_m,), "float32")
            shrink = T.alloc_fragment((block_m,), "float32")
            part = T.alloc_fragment((block_m,), "float32")
            total = T.alloc_fragment((block_m,), "float32")
            b = T.truncdiv(bx, heads)
            h = T.truncmod(bx, heads)
            shared_head = T.truncdiv(h, T.truncdiv(heads, kv_heads))
            # the last queries first: under a causal mask they see the most
            first = (T.ceildiv(queries, block_m) - 1 - by) * block_m
            # not by TMA: the wait for it would stand in the loop, and where that has no turn `result` lies in its way
            load(q, b, h, first, queries, head_dim, query, block_m, D, False)
            T.clear(sums)
            T.clear(total)
            T.fill(peak, -T.infinity("float32"))
            begin, clear, edge, end = mask.bounds(first, block_m, block_n, queries, keys)
            for turn in T.Pipelined(end - begin, num_stages=stages if by_tma else 0):
                load(k, b, shared_head, (begin + turn) * block_n, keys, head_dim, key, block_n, D, True)
                T.clear(s)
                T.gemm(query, key, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                at_edge = either(begin + turn < clear, begin + turn >= edge)
                weigh(s, peak, before, base, shrink, part, total, first, (begin + turn) * block_n, at_edge)
                T.copy(s, weights)
                for i, e in T.Parallel(block_m, E):
                    sums[i, e] = sums[i, e] * shrink[i]
                load(v, b, shared_head, (begin + turn) * block_n, keys, value_dim, value, block_n, E, True)
                T.gemm(weights, value, sums, policy=T.GemmWarpPolicy.FullRow)
            finish(peak, total, lse, b, h, first)
            for i, e in T.Parallel(block_m, E):
                sums[i, e] = sums[i, e] / total[i]
            if by_tma:
                T.copy(sums, result)
                T.copy(result, out[b, h, first : first + block_m, 0:E])
            else:
                # times a number that is known at the launch alone: elements of one thread are then stored one by one
                for i, e in T.Parallel(block_m, E):
                    if both(first + i < queries, e * heads < value_dim * heads):
                        out[b, h, first + i, e] = T.Cast(dtype, sums[i, e])

    return attention


def multiplied_plainly(
    dtype, target, head_dim, value_dim, mask, scale, softcap, at_16_bytes, block_m=32, block_n=32, threads=128
):
    """Float32 on a GPU, and every dtype on the C target: keys lie transposed, so that a row of scores is a vector. On a
    GPU rows are padded, since TileLang finds no layout for sums of 32 by 17, and copied one by one where they lie at no
    multiple of 16 bytes.
    """
    D, E = (size if target == "c" else -(-size // LEAST) * LEAST for size in (head_dim, value_dim))
    batch, heads, kv_heads = T.dynamic("batch"), T.dynamic("heads"), T.dynamic("kv_heads")
    queries, keys = T.dynamic("queries"), T.dynamic("keys")
    each, registers = loop(target), tile(target)
    whole = target == "c" or at_16_bytes
    copied = each if whole else partial(T.Parallel, coalesced_width=ONE)
    apart = 1 if whole else heads
    held = T.alloc_local if target == "c" else T.alloc_shared
    stored = storage(dtype, target)
    weigh, finish = softmax_macros(each, target, mask, scale, softcap, block_m, block_n, queries, keys)

    @T.prim_func
    def attention(
        q: T.Tensor((batch, heads, queries, head_dim), stored),
        k: T.Tensor((batch, kv_heads, keys, head_dim), stored),
        v: T.Tensor((batch, kv_heads, keys, value_dim), stored),
        out: T.Tensor((batch, heads, queries, value_dim), stored),
        lse: T.Tensor((batch, heads, queries), "float32"),
    ):
        with T.Kernel(batch * heads, T.ceildiv(queries, block_m), threads=threads) as (bx, by):
            if target != "c":
                T.import_source(EXP2)
            query = held((block_m, D), "float32")
            key = held((D, block_n), "float32")
            value = held((block_n, E), "float32")
            weights = held((block_m, block_n), "float32")
            smaller = held((block_m,), "float32")
            s = registers((block_m, block_n), "float32")
            sums = registers((block_m, E), "float32")
            peak = registers((block_m,), "float32")
            before = registers((block_m,), "float32")
            base = registers((block_m,), "float32")
            shrink = registers((block_m,), "float32")
            part = registers((block_m,), "float32")
            total = registers((block_m,), "float32")
            b = T.truncdiv(bx, heads)
            h = T.truncmod(bx, heads)
            shared_head = T.truncdiv(h, T.truncdiv(heads, kv_heads))
            first = (T.ceildiv(queries, block_m) - 1 - by) * block_m
            for i, d in copied(block_m, D):
                query[i, d] = T.if_then_else(
                    both(first + i < queries, d < head_dim),
                    to_float32(q[b, h, first + i, d], dtype, target),
                    T.float32(0),
                )
            for i, e in each(block_m, E):
                sums[i, e] = T.float32(0)
            for i in each(block_m):
                total[i] = T.float32(0)
                peak[i] = -T.infinity("float32")
            begin, clear, edge, end = mask.bounds(first, block_m, block_n, queries, keys)
            for turn in T.serial(end - begin):
                start = (begin + turn) * block_n
                for j, d in copied(block_n, D):
                    key[d, j] = T.if_then_else(
                        both(start + j < keys, d < head_dim),
                        to_float32(k[b, shared_head, start + j, d], dtype, target),
                        T.float32(0),
                    )
                for j, e in copied(block_n, E):
                    value[j, e] = T.if_then_else(
                        both(start + j < keys, e < value_dim),
                        to_float32(v[b, shared_head, start + j, e], dtype, target),
                        T.float32(0),
                    )
                for i, j in each(block_m, block_n):
                    s[i, j] = T.float32(0)
                for d in T.serial(D):
                    for i, j in each(block_m, block_n):
                        s[i, j] = s[i, j] + query[i, d] * key[d, j]
                at_edge = either(begin + turn < clear, begin + turn >= edge)
                weigh(s, peak, before, base, shrink, part, total, first, start, at_edge)
                for i, j in each(block_m, block_n):
                    weights[i, j] = s[i, j]
                for i in each(block_m):
                    smaller[i] = shrink[i]
                for i, e in each(block_m, E):
                    sums[i, e] = sums[i, e] * smaller[i]
                for j in T.serial(block_n):
                    for i, e in each(block_m, E):
                        sums[i, e] = sums[i, e] + weights[i, j] * value[j, e]
            finish(peak, total, lse, b, h, first)
            for i in each(block_m):
                smaller[i] = total[i]
            for i, e in each(block_m, E):
                if both(first + i < queries, e * apart < value_dim * apart):
                    out[b, h, first + i, e] = from_float32(sums[i, e] / smaller[i], dtype, target)

    return attention
