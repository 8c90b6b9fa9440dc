"""Gluon: the roles of ../matmul/triton_gluon with FP8 operands, and sums that move to float32 registers after every 128
terms.

moves     a is read cdiv(n, 128) times and b cdiv(m, 256) times (in blocks: cdiv(m, 192)), mostly from the second-level
          cache
idea      Hopper's tensor cores keep some 14 bits of a sum of FP8 products, so each stage of 128 terms begins a new one;
          while one warpgroup adds its 64 x 128 sums to those before, the others have the tensor cores. Two warpgroups
          with two such halves each; scales of blocks, loaded under the products, leave room for one half a warpgroup
          (two spill): then there are three of them
limits    sm_90 alone (wgmma); an operand that TMA cannot address (rows not at multiples of 16 bytes, terms not side by
          side) takes the kernel of triton_scaled
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from opforge.device.triton.fp8 import launch_scaled, scale_steps
from opforge.device.triton.gemm import how, multiprocessors
from opforge.device.triton.roles import barriers, described, place, send

ARCH = "sm_90a"
LAYOUTS = ("contiguous", "rows", "strided")
SPACE = {"STAGES": (2, 3, 4), "GROUP": (2, 4, 8, 16)}
LIMITS = {"stages_fit_shared_memory": "384 * 128 * STAGES + 2 * 64 * 128 * 2 + 1024 <= shared_bytes_per_block"}
DEFAULT = {"STAGES": 4, "GROUP": 4}
FLOAT32_STAGES = 3
"""A float32 tile on its way out takes the room of a stage."""

HALF = tl.constexpr(64)
WIDTH = tl.constexpr(128)
TERMS = tl.constexpr(128)


@gluon.jit
def produce(
    a,
    b,
    a_ring,
    b_ring,
    full,
    free,
    blocks_m,
    blocks_n,
    steps,
    PIECES: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
):
    """Fill the pipeline: pieces of 64 rows of a for the consumers, and the tile of b that they share."""
    count = 0
    for tile in range(gl.program_id(0), blocks_m * blocks_n, gl.num_programs(0)):
        block_m, block_n = place(tile, blocks_m, blocks_n, GROUP)
        for step in range(steps):
            stage = count % STAGES
            mbarrier.wait(free.index(stage), (count // STAGES & 1) ^ 1)
            bar = full.index(stage)
            mbarrier.expect(bar, PIECES * a.block_type.nbytes + b.block_type.nbytes)
            for piece in gl.static_range(PIECES):
                tma.async_copy_global_to_shared(
                    a, [(block_m * PIECES + piece) * HALF, step * TERMS], bar, a_ring.index(PIECES * stage + piece)
                )
            tma.async_copy_global_to_shared(b, [block_n * WIDTH, step * TERMS], bar, b_ring.index(stage))
            count += 1


@gluon.jit
def consume_halves(
    y, scale_a, scale_b, m, n, sa_row, sb_row, a_ring, b_ring, y_part, full, free, blocks_m, blocks_n, steps,
    ME: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """128 rows in two halves: multiply a stage from nothing, add it to what there is; scale the final sums."""
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, WIDTH, 32])
    count = 0
    nothing = gl.zeros((HALF, WIDTH), gl.float32, layout)
    for tile in range(gl.program_id(0), blocks_m * blocks_n, gl.num_programs(0)):
        block_m, block_n = place(tile, blocks_m, blocks_n, GROUP)
        upper = gl.zeros((HALF, WIDTH), gl.float32, layout)
        lower = gl.zeros((HALF, WIDTH), gl.float32, layout)
        for _step in range(steps):
            stage = count % STAGES
            mbarrier.wait(full.index(stage), count // STAGES & 1)
            right = b_ring.index(stage).permute((1, 0))
            part = warpgroup_mma(a_ring.index(4 * stage + 2 * ME), right, nothing, use_acc=False, is_async=True)
            upper += warpgroup_mma_wait(num_outstanding=0, deps=[part])
            part = warpgroup_mma(a_ring.index(4 * stage + 2 * ME + 1), right, nothing, use_acc=False, is_async=True)
            part = warpgroup_mma_wait(num_outstanding=0, deps=[part])
            mbarrier.arrive(free.index(stage), count=1)
            lower += part
            count += 1
        row, col = (block_m * 4 + ME * 2) * HALF, block_n * WIDTH
        q = col + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout))
        by_col = gl.load(scale_b + q.to(gl.int64) * sb_row, mask=q < n, other=0.0)
        send(y, by_rows(upper, by_col, scale_a, m, sa_row, row).to(y.dtype), y_part, row, col)
        send(y, by_rows(lower, by_col, scale_a, m, sa_row, row + HALF).to(y.dtype), y_part, row + HALF, col)
    tma.store_wait(0)


@gluon.jit
def by_rows(sums, by_col, scale_a, m, sa_row, row):
    r = row + gl.arange(0, HALF, layout=gl.SliceLayout(1, sums.type.layout))
    # int64: row * stride leaves int32 beyond 2^31 elements
    return sums * gl.load(scale_a + r.to(gl.int64) * sa_row, mask=r < m, other=0.0)[:, None] * by_col[None, :]


@gluon.jit
def consume_blocks(
    y, scales, a_ring, b_ring, y_part, ring, ME: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr
):
    """64 rows: multiply a stage from nothing, scale it, add it to what there is."""
    scale_a, scale_b, m, sa_row, sa_block, sb_row, sb_block = scales
    full, free, blocks_m, blocks_n, steps = ring
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, WIDTH, 32])
    count = 0
    nothing = gl.zeros((HALF, WIDTH), gl.float32, layout)
    for tile in range(gl.program_id(0), blocks_m * blocks_n, gl.num_programs(0)):
        block_m, block_n = place(tile, blocks_m, blocks_n, GROUP)
        row, col = (block_m * 3 + ME) * HALF, block_n * WIDTH
        r = row + gl.arange(0, HALF, layout=gl.SliceLayout(1, layout))
        # int64: row * stride leaves int32 beyond 2^31 elements
        a_at = scale_a + r.to(gl.int64) * sa_row
        b_at = scale_b + block_n * sb_row
        sums = gl.zeros((HALF, WIDTH), gl.float32, layout)
        for _step in range(steps):
            stage = count % STAGES
            mbarrier.wait(full.index(stage), count // STAGES & 1)
            part = warpgroup_mma(
                a_ring.index(3 * stage + ME), b_ring.index(stage).permute((1, 0)), nothing, use_acc=False, is_async=True
            )
            # under way together with the products; the 128 columns are one block of b's scales
            by_block = gl.load(a_at, mask=r < m, other=0.0) * gl.load(b_at)
            a_at += sa_block
            b_at += sb_block
            part = warpgroup_mma_wait(num_outstanding=0, deps=[part])
            mbarrier.arrive(free.index(stage), count=1)
            sums += part * by_block[:, None]
            count += 1
        send(y, sums.to(y.dtype), y_part, row, col)
    tma.store_wait(0)


@gluon.jit
def scaled_roles(
    a, b, y, scale_a, scale_b, m, n, sa_row, sb_row, blocks_m, blocks_n, steps,
    STAGES: gl.constexpr, GROUP: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    a_ring = gl.allocate_shared_memory(a.dtype, [4 * STAGES, HALF, TERMS], a.layout)
    b_ring = gl.allocate_shared_memory(b.dtype, [STAGES, WIDTH, TERMS], b.layout)
    y_parts = gl.allocate_shared_memory(y.dtype, [2, HALF, WIDTH], y.layout)
    full, free = barriers(STAGES, 2)
    gl.warp_specialize(
        [
            (
                consume_halves,
                (
                    y,
                    scale_a,
                    scale_b,
                    m,
                    n,
                    sa_row,
                    sb_row,
                    a_ring,
                    b_ring,
                    y_parts.index(0),
                    full,
                    free,
                    blocks_m,
                    blocks_n,
                    steps,
                    0,
                    STAGES,
                    GROUP,
                ),
            ),
            (
                consume_halves,
                (
                    y,
                    scale_a,
                    scale_b,
                    m,
                    n,
                    sa_row,
                    sb_row,
                    a_ring,
                    b_ring,
                    y_parts.index(1),
                    full,
                    free,
                    blocks_m,
                    blocks_n,
                    steps,
                    1,
                    STAGES,
                    GROUP,
                ),
            ),
            (produce, (a, b, a_ring, b_ring, full, free, blocks_m, blocks_n, steps, 4, STAGES, GROUP)),
        ],
        [4, 1],
        [240, 24],
    )


@gluon.jit
def block_roles(
    a, b, y, scale_a, scale_b, m, sa_row, sa_block, sb_row, sb_block, blocks_m, blocks_n, steps,
    STAGES: gl.constexpr, GROUP: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    a_ring = gl.allocate_shared_memory(a.dtype, [3 * STAGES, HALF, TERMS], a.layout)
    b_ring = gl.allocate_shared_memory(b.dtype, [STAGES, WIDTH, TERMS], b.layout)
    y_parts = gl.allocate_shared_memory(y.dtype, [3, HALF, WIDTH], y.layout)
    full, free = barriers(STAGES, 3)
    scales = (scale_a, scale_b, m, sa_row, sa_block, sb_row, sb_block)
    ring = (full, free, blocks_m, blocks_n, steps)
    gl.warp_specialize(
        [
            (consume_blocks, (y, scales, a_ring, b_ring, y_parts.index(0), ring, 0, STAGES, GROUP)),
            (consume_blocks, (y, scales, a_ring, b_ring, y_parts.index(1), ring, 1, STAGES, GROUP)),
            (consume_blocks, (y, scales, a_ring, b_ring, y_parts.index(2), ring, 2, STAGES, GROUP)),
            (produce, (a, b, a_ring, b_ring, full, free, blocks_m, blocks_n, steps, 3, STAGES, GROUP)),
        ],
        [4, 4, 1],
        [152, 152, 24],
    )


def launch(a, b, scale_a, scale_b, y, *, scaling, b_dtype, out_dtype, STAGES, GROUP):
    (m, k), n = a.shape, b.shape[0]
    blockwise = scaling == "block"
    if any(how(matrix) != "rows" for matrix in (a, b, y)):
        launch_scaled(
            a,
            b,
            scale_a,
            scale_b,
            y,
            blockwise=blockwise,
            tma=False,
            BLOCK_M=64,
            BLOCK_N=64,
            GROUP=8,
            PERSISTENT=False,
            num_warps=4,
            num_stages=2,
        )
        return
    if out_dtype == "float32":
        STAGES = min(STAGES, FLOAT32_STAGES)
    blocks_m, blocks_n, steps = triton.cdiv(m, 192 if blockwise else 256), triton.cdiv(n, 128), triton.cdiv(k, 128)
    grid = (min(multiprocessors(y), blocks_m * blocks_n),)
    matrices = (
        described(a, "rows", 64, 128),
        described(b, "rows", 128, 128),
        described(y, "rows", 64, 128),
        scale_a,
        scale_b,
        m,
    )
    (sa_row, sa_block), (sb_row, sb_block) = scale_steps(scale_a), scale_steps(scale_b)
    if blockwise:
        block_roles[grid](
            *matrices,
            sa_row,
            sa_block,
            sb_row,
            sb_block,
            blocks_m,
            blocks_n,
            steps,
            STAGES=STAGES,
            GROUP=GROUP,
            num_warps=4,
        )
    else:
        scaled_roles[grid](
            *matrices, n, sa_row, sb_row, blocks_m, blocks_n, steps, STAGES=STAGES, GROUP=GROUP, num_warps=4
        )
