"""Gluon with divided labour: one warp feeds rings of keys and values by TMA, two warpgroups of 64 queries multiply with
wgmma and take exponentials under each other's products.

source    Shah et al., FlashAttention-3, arXiv:2407.08608
idea      what Triton's compiler cannot give: a producer with 24 registers, consumers with 240, barriers for each stage
          of each ring, and the order of products: scores of the next block of keys are multiplied before this block's
          weights meet the values, so that exponentials run under the second product. Weights stay in registers
moves     q and out once; k and v once for each 128 queries, mostly from L2
config    BLOCK_N keys of a block, STAGES of them in each ring; TURNS: consumers take turns at the tensor cores
limits    sm_90 alone; 16 bits, head dimensions to 128; nothing beside q, k and v but causal masks, windows and
          softcaps. What TMA cannot address (rows not at multiples of 16 bytes) takes the kernel of triton_twoloops
precision sums in float32; weights are rounded to the dtype before they meet v
"""

import math

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from opforge.device.triton.attention import DEFAULT as OTHERWISE, launch_forward, reach
from opforge.device.triton.gemm import multiprocessors
from opforge.device.triton.roles import FORMATS, barriers

ARCH = "sm_90a"
LAYOUTS = ("contiguous", "rows", "strided")
DTYPES = ("float16", "bfloat16")
SUPPORTS = {
    "heads_fit_registers": "head_dim <= 128 and value_dim <= 128",
    "nothing_beside": "not (has_key_lengths or has_bias or has_mask or has_alibi_slopes or has_sinks)",
    "no_dropout": "dropout == 0",
}
SPACE = {"BLOCK_N": (64, 128), "STAGES": (2, 3), "TURNS": (False, True)}
LIMITS = {
    "stages_fit_shared_memory": "(128 + STAGES * BLOCK_N) * 2 * 2 * max(64, next_pow2(head_dim), "
    "next_pow2(value_dim)) + 1024 <= shared_bytes_per_block"
}
DEFAULT = {"BLOCK_N": 128, "STAGES": 2, "TURNS": False}

HALF = tl.constexpr(64)
LOG2E = tl.constexpr(1.4426950408889634)


@gluon.jit
def tile_of(at, row_blocks, heads, together):
    """(block of queries, head of all entries): of heads whose keys fit L2 together the longest blocks first."""
    first = at // (together * row_blocks) * together
    width = min(together, heads - first)
    inside = at - first * row_blocks
    return row_blocks - 1 - inside // width, first + inside % width


@gluon.jit
def key_blocks(block, queries, keys, shift, left, right, BLOCK_N: gl.constexpr):
    """(first, end): blocks of keys that any of the 128 queries sees."""
    top = block * 2 * HALF + shift
    bottom = min(block * 2 * HALF + 2 * HALF, queries) - 1 + shift
    first = max(top - left, 0) // BLOCK_N
    end = (max(min(bottom + right + 1, keys), 0) + BLOCK_N - 1) // BLOCK_N
    return first, max(end, first)


@gluon.jit
def tile_in(ring, stage):
    """[rows, columns] of a stage: TMA wrote them as a tile of four axes."""
    return ring.index(stage).reshape([ring.shape[3], ring.shape[4]])


@gluon.jit
def produce(
    q, k, v, q_tiles, k_ring, v_ring, q_bars, k_bars, v_bars, sizes, reaches, BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    row_blocks, heads, together, group, kv_heads, queries, keys = sizes
    shift, left, right = reaches
    q_full, q_free = q_bars
    k_full, k_free = k_bars
    v_full, v_free = v_bars
    count, tiles = 0, 0
    for at in range(gl.program_id(0), row_blocks * heads, gl.num_programs(0)):
        block, head = tile_of(at, row_blocks, heads, together)
        first, end = key_blocks(block, queries, keys, shift, left, right, BLOCK_N)
        entry, in_entry = head // (kv_heads * group), head % (kv_heads * group)
        shared = in_entry // group
        if end > first:
            mbarrier.wait(q_free.index(0), (tiles & 1) ^ 1)
            mbarrier.expect(q_full.index(0), 2 * q.block_type.nbytes)
            tma.async_copy_global_to_shared(
                q, [entry, in_entry, block * 2 * HALF, 0], q_full.index(0), q_tiles.index(0)
            )
            tma.async_copy_global_to_shared(
                q, [entry, in_entry, block * 2 * HALF + HALF, 0], q_full.index(0), q_tiles.index(1)
            )
            tiles += 1
            for number in range(end - first):
                stage = count % STAGES
                phase = (count // STAGES & 1) ^ 1
                row = (end - 1 - number) * BLOCK_N
                mbarrier.wait(k_free.index(stage), phase)
                mbarrier.expect(k_full.index(stage), k.block_type.nbytes)
                tma.async_copy_global_to_shared(k, [entry, shared, row, 0], k_full.index(stage), k_ring.index(stage))
                mbarrier.wait(v_free.index(stage), phase)
                mbarrier.expect(v_full.index(stage), v.block_type.nbytes)
                tma.async_copy_global_to_shared(v, [entry, shared, row, 0], v_full.index(stage), v_ring.index(stage))
                count += 1


@gluon.jit
def weigh(
    s, peak, total, row0, col0, keys, shift, left, right, scale, softcap, CAP: gl.constexpr, LAYOUT: gl.constexpr
):
    """Weights of a block of scores over the largest so far; the largest, the sums, and what earlier sums shrink by."""
    rows = gl.arange(0, s.shape[0], gl.SliceLayout(1, LAYOUT)) + (row0 + shift)
    cols = gl.arange(0, s.shape[1], gl.SliceLayout(0, LAYOUT)) + col0
    if CAP:
        s = softcap * (1.0 - 2.0 / (gl.exp2(s * (2.0 * LOG2E * scale / softcap)) + 1.0))
        factor = LOG2E
    else:
        factor = gl.abs(scale) * LOG2E
        if scale < 0:
            s = -s
    # blocks of keys that all of these queries see whole are not masked
    if (
        (col0 + s.shape[1] > keys)
        | (col0 + s.shape[1] - 1 > row0 + shift + right)
        | (col0 < row0 + s.shape[0] - 1 + shift - left)
    ):
        distance = cols[None, :] - rows[:, None]
        s = gl.where((distance >= -left) & (distance <= right) & (cols < keys)[None, :], s, -float("inf"))
    higher = gl.maximum(peak, gl.max(s, 1))
    # a row that has seen nothing yet keeps -inf: its weights are exp2(-inf - 0) = 0, and no NaN
    base = gl.where(higher == -float("inf"), 0.0, higher)
    # scaled after the largest one is taken off: see `steps` in opforge.device.triton.attention
    weights = gl.exp2((s - base[:, None]) * factor)
    shrink = gl.exp2((peak - base) * factor)
    return weights, higher, total * shrink + gl.sum(weights, 1), shrink


@gluon.jit
def consume(
    out, lse, q_tile, k_ring, v_ring, q_bars, k_bars, v_bars, turns, sizes, reaches, scale, softcap, value_dim,
    ME: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, CAP: gl.constexpr, TURNS: gl.constexpr,
    E: gl.constexpr,
):  # fmt: skip
    of_scores: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16]
    )
    of_sums: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, E, 16])
    of_weights: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=of_sums, k_width=2)
    of_rows: gl.constexpr = gl.SliceLayout(1, of_scores)
    row_blocks, heads, together, _, _, queries, keys = sizes
    shift, left, right = reaches
    q_full, q_free = q_bars
    k_full, k_free = k_bars
    v_full, v_free = v_bars
    q_tile = q_tile.reshape([q_tile.shape[2], q_tile.shape[3]])
    nothing = gl.zeros((HALF, BLOCK_N), gl.float32, of_scores)
    count, tiles, turn = 0, 0, 0
    for at in range(gl.program_id(0), row_blocks * heads, gl.num_programs(0)):
        block, head = tile_of(at, row_blocks, heads, together)
        first, end = key_blocks(block, queries, keys, shift, left, right, BLOCK_N)
        row0 = block * 2 * HALF + ME * HALF
        sums = gl.zeros((HALF, E), gl.float32, of_sums)
        total = gl.zeros((HALF,), gl.float32, of_rows)
        peak = gl.full((HALF,), -float("inf"), gl.float32, of_rows)
        if end > first:
            mbarrier.wait(q_full.index(0), tiles & 1)
            stage = count % STAGES
            mbarrier.wait(k_full.index(stage), count // STAGES & 1)
            token = warpgroup_mma(q_tile, tile_in(k_ring, stage).permute((1, 0)), nothing, use_acc=False, is_async=True)
            s = warpgroup_mma_wait(num_outstanding=0, deps=[token])
            mbarrier.arrive(k_free.index(stage), count=1)
            weights, peak, total, shrink = weigh(
                s, peak, total, row0, (end - 1) * BLOCK_N, keys, shift, left, right, scale, softcap, CAP, of_scores
            )
            left_side = gl.convert_layout(weights.to(v_ring.dtype), of_weights)
            mbarrier.wait(v_full.index(stage), count // STAGES & 1)
            for number in range(1, end - first):
                now = count % STAGES
                count += 1
                stage = count % STAGES
                mbarrier.wait(k_full.index(stage), count // STAGES & 1)
                if TURNS:
                    mbarrier.wait(turns.index(ME), (turn & 1) ^ 1 if ME == 0 else turn & 1)
                    turn += 1
                token = warpgroup_mma(
                    q_tile, tile_in(k_ring, stage).permute((1, 0)), nothing, use_acc=False, is_async=True
                )
                adding = warpgroup_mma(left_side, tile_in(v_ring, now), sums, is_async=True)
                if TURNS:
                    mbarrier.arrive(turns.index(1 - ME), count=1)
                s = warpgroup_mma_wait(num_outstanding=1, deps=[token])
                mbarrier.arrive(k_free.index(stage), count=1)
                weights, peak, total, shrink = weigh(
                    s, peak, total, row0, (end - 1 - number) * BLOCK_N, keys, shift, left, right, scale, softcap, CAP,
                    of_scores,
                )  # fmt: skip
                # these values are wanted only later; a loop that waits here keeps ptxas from waiting for the products
                # below before the exponentials above
                mbarrier.wait(v_full.index(stage), count // STAGES & 1)
                sums = warpgroup_mma_wait(num_outstanding=0, deps=[adding])
                mbarrier.arrive(v_free.index(now), count=1)
                sums = sums * gl.convert_layout(shrink, gl.SliceLayout(1, of_sums))[:, None]
                left_side = gl.convert_layout(weights.to(v_ring.dtype), of_weights)
            mbarrier.arrive(q_free.index(0), count=1)
            adding = warpgroup_mma(left_side, tile_in(v_ring, stage), sums, is_async=True)
            sums = warpgroup_mma_wait(num_outstanding=0, deps=[adding])
            mbarrier.arrive(v_free.index(stage), count=1)
            count += 1
            tiles += 1
        blind = total == 0.0
        rows = gl.arange(0, HALF, of_rows) + row0
        unit = 1.0 if CAP else gl.abs(scale)
        logarithm = gl.where(blind, -float("inf"), peak * unit + gl.log2(gl.where(blind, 1.0, total)) / LOG2E)
        line = head.to(gl.int64) * queries
        gl.store(lse + line + rows, logarithm, mask=rows < queries)
        weight = gl.convert_layout(1.0 / gl.where(blind, 1.0, total), gl.SliceLayout(1, of_sums))
        at_row = gl.arange(0, HALF, gl.SliceLayout(1, of_sums)) + row0
        at_col = gl.arange(0, E, gl.SliceLayout(0, of_sums))
        gl.store(
            out + (line + at_row)[:, None] * value_dim + at_col[None, :],
            (sums * weight[:, None]).to(out.dtype.element_ty),
            mask=(at_row < queries)[:, None] & (at_col < value_dim)[None, :],
        )


@gluon.jit
def attend(
    q, k, v, out, lse, row_blocks, heads, together, group, kv_heads, queries, keys, value_dim, shift, left, right,
    scale, softcap, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr, CAP: gl.constexpr,
    D: gl.constexpr, E: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """All pipelines, their barriers, and who does what."""
    q_tiles = gl.allocate_shared_memory(q.dtype, [2, 1, 1, HALF, D], q.layout)
    k_ring = gl.allocate_shared_memory(k.dtype, [STAGES, 1, 1, BLOCK_N, D], k.layout)
    v_ring = gl.allocate_shared_memory(v.dtype, [STAGES, 1, 1, BLOCK_N, E], v.layout)
    q_bars = barriers(1, 2)
    k_bars = barriers(STAGES, 2)
    v_bars = barriers(STAGES, 2)
    turns, _unused = barriers(2, 1)
    sizes = (row_blocks, heads, together, group, kv_heads, queries, keys)
    reaches = (shift, left, right)
    gl.warp_specialize(
        [
            (
                consume,
                (
                    out, lse, q_tiles.index(0), k_ring, v_ring, q_bars, k_bars, v_bars, turns, sizes, reaches, scale,
                    softcap, value_dim, 0, BLOCK_N, STAGES, CAP, TURNS, E,
                ),
            ),
            (
                consume,
                (
                    out, lse, q_tiles.index(1), k_ring, v_ring, q_bars, k_bars, v_bars, turns, sizes, reaches, scale,
                    softcap, value_dim, 1, BLOCK_N, STAGES, CAP, TURNS, E,
                ),
            ),
            (produce, (q, k, v, q_tiles, k_ring, v_ring, q_bars, k_bars, v_bars, sizes, reaches, BLOCK_N, STAGES)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def steps_of(tensor):
    """The strides as TMA takes them, or None where it cannot: an axis of one has no next element, any will do."""
    last = (tensor.shape[3] + 7) // 8 * 8
    steps = [last if size == 1 else step for size, step in zip(tensor.shape[:3], tensor.stride()[:3], strict=True)]
    whole = (tensor.stride(3) == 1 or tensor.shape[3] == 1) and tensor.data_ptr() % 16 == 0 and min(tensor.shape) > 0
    return [*steps, 1] if whole and all(step > 0 and step % 8 == 0 for step in steps) else None


def described(tensor, rows, cols):
    """A TMA descriptor for [rows, cols] of one head: what lies beyond its ends is read as zeros."""
    block = [1, 1, rows, cols]
    layout = gl.NVMMASharedLayout.get_default_for(block, FORMATS[tensor.dtype])
    return TensorDescriptor(tensor, list(tensor.shape), steps_of(tensor), block, layout)


def launch(
    q, k, v, key_lengths, bias, mask, alibi_slopes, sinks, out, lse, *, scale, causal, window_left, window_right,
    alignment, softcap, dropout, seed, offset, BLOCK_N, STAGES, TURNS,
):  # fmt: skip
    batch, heads, queries, head_dim = q.shape
    kv_heads, keys, value_dim = v.shape[1:]
    if not out.numel():
        return
    if any(steps_of(tensor) is None for tensor in (q, k, v)):
        launch_forward(
            q, k, v, key_lengths, bias, mask, alibi_slopes, sinks, out, lse, scale=scale, causal=causal,
            window_left=window_left, window_right=window_right, alignment=alignment, softcap=softcap, dropout=dropout,
            seed=seed, offset=offset, SPLIT=True, **OTHERWISE,
        )  # fmt: skip
        return
    shift, left, right, _ = reach(queries, keys, causal, window_left, window_right, alignment)
    D, E = (max(64, triton.next_power_of_2(size)) for size in (head_dim, value_dim))
    row_blocks, all_heads, group = triton.cdiv(queries, 128), batch * heads, heads // kv_heads
    together = min(all_heads, max(1, (25 << 20) // max(1, keys * (head_dim + value_dim) * 2)) * group)
    attend[(min(multiprocessors(out), row_blocks * all_heads),)](
        described(q, 64, D), described(k, BLOCK_N, D), described(v, BLOCK_N, E), out, lse, row_blocks, all_heads,
        together, group, kv_heads, queries, keys, value_dim, shift, left, right,
        scale or 1.0 / math.sqrt(head_dim), softcap or 1.0,
        BLOCK_N=BLOCK_N, STAGES=STAGES, TURNS=TURNS, CAP=softcap > 0, D=D, E=E, num_warps=4,
    )  # fmt: skip
