"""Products of matrices in Gluon with divided labour: one warp feeds TMA, two warpgroups multiply with wgmma and store.

The roles that Triton's compiler cannot give: a producer warp with 24 registers, two consumers with 240 each that share
the tile of b and own ROWS rows of a, full and free barriers for each stage, persistent programs in groups that share
panels. A tile's store runs under the products of the next one. sm_90a alone; 16-bit operands that TMA can address (see
triton_gemm.how). An epilogue is as in triton_gemm: `epilogue(sums, row, col, extras, VARIANT)`, called on [ROWS,
columns of a part] at (row, col).
"""

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from opforge.device.tile_choice import WEIGHTS_OF_ROLES, least_work
from opforge.device.triton.gemm import early, how, multiprocessors

DEPTH = tl.constexpr(64)
"""Terms of a step: 128 bytes of a 16-bit row, as wide as the widest swizzle."""

FORMATS = {
    torch.float32: gl.float32,
    torch.float16: gl.float16,
    torch.bfloat16: gl.bfloat16,
    torch.float8_e4m3fn: gl.float8e4nv,
    torch.float8_e5m2: gl.float8e5,
}
"""Gluon's name of each dtype that descriptors are made for."""


@gluon.jit
def place(tile, blocks_m, blocks_n, GROUP: gl.constexpr):
    """The row and column of a tile, in tiles: GROUP rows of them are visited column by column."""
    first = tile // (GROUP * blocks_n) * GROUP
    height = min(blocks_m - first, GROUP)
    return first + tile % (GROUP * blocks_n) % height, tile % (GROUP * blocks_n) // height


@gluon.jit
def barriers(STAGES: gl.constexpr, CONSUMERS: gl.constexpr):
    """The barriers of a pipeline of stages: `full`, which the producer arrives at once, and `free`, each consumer
    once. For all threads.
    """
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(free.index(stage), count=CONSUMERS)
    fence_async_shared()
    gl.thread_barrier()
    return full, free


@gluon.jit
def send(c, result, part, row, col):
    """Store a tile through shared memory; still on its way when this returns. `part` may hold the tile before, until
    that has left.
    """
    tma.store_wait(0)
    gl.thread_barrier()
    part.store(result)
    fence_async_shared()
    gl.thread_barrier()
    tma.async_copy_shared_to_global(c, [row, col], part)


@gluon.jit
def produce(
    a, b, a_ring, b_ring, full, free, blocks_m, blocks_n, steps,
    ROWS: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr, A: gl.constexpr,
    B: gl.constexpr,
):  # fmt: skip
    """Fill the pipeline: both consumers' rows of a, and the tile of b that they share."""
    count = 0
    for tile in range(gl.program_id(0), blocks_m * blocks_n, gl.num_programs(0)):
        block_m, block_n = place(tile, blocks_m, blocks_n, GROUP)
        row, col = block_m * 2 * ROWS, block_n * BLOCK_N
        for step in range(steps):
            stage = count % STAGES
            mbarrier.wait(free.index(stage), (count // STAGES & 1) ^ 1)
            bar = full.index(stage)
            mbarrier.expect(bar, 2 * a.block_type.nbytes + b.block_type.nbytes)
            term = step * DEPTH
            if A == "rows":
                tma.async_copy_global_to_shared(a, [row, term], bar, a_ring.index(2 * stage))
                tma.async_copy_global_to_shared(a, [row + ROWS, term], bar, a_ring.index(2 * stage + 1))
            else:
                tma.async_copy_global_to_shared(a, [term, row], bar, a_ring.index(2 * stage))
                tma.async_copy_global_to_shared(a, [term, row + ROWS], bar, a_ring.index(2 * stage + 1))
            if B == "rows":
                tma.async_copy_global_to_shared(b, [term, col], bar, b_ring.index(stage))
            else:
                tma.async_copy_global_to_shared(b, [col, term], bar, b_ring.index(stage))
            count += 1


@gluon.jit
def consume(
    c, extras, a_ring, b_ring, c_part, full, free, blocks_m, blocks_n, steps,
    ME: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr,
    GROUP: gl.constexpr,
    A: gl.constexpr, B: gl.constexpr, EPILOGUE: gl.constexpr, VARIANT: gl.constexpr,
):  # fmt: skip
    """Multiply what is in the pipeline, with one product in flight while the one before it gives its stage back; store
    the tile in PARTS.
    """
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16]
    )
    count = 0
    for tile in range(gl.program_id(0), blocks_m * blocks_n, gl.num_programs(0)):
        block_m, block_n = place(tile, blocks_m, blocks_n, GROUP)
        sums = gl.zeros((ROWS, BLOCK_N), gl.float32, layout)
        for step in range(steps):
            stage = count % STAGES
            mbarrier.wait(full.index(stage), count // STAGES & 1)
            left = a_ring.index(2 * stage + ME)
            right = b_ring.index(stage)
            if A != "rows":
                left = left.permute((1, 0))
            if B != "rows":
                right = right.permute((1, 0))
            sums = warpgroup_mma(left, right, sums, is_async=True)
            sums = warpgroup_mma_wait(num_outstanding=1, deps=[sums])
            if step > 0:
                mbarrier.arrive(free.index((count + STAGES - 1) % STAGES), count=1)
            count += 1
        sums = warpgroup_mma_wait(num_outstanding=0, deps=[sums])
        mbarrier.arrive(free.index((count + STAGES - 1) % STAGES), count=1)
        store(
            c,
            sums,
            extras,
            c_part,
            block_m * 2 * ROWS + ME * ROWS,
            block_n * BLOCK_N,
            ROWS,
            BLOCK_N,
            PARTS,
            EPILOGUE,
            VARIANT,
        )
    tma.store_wait(0)


@gluon.jit
def store(
    c,
    sums,
    extras,
    c_part,
    row,
    col,
    ROWS: gl.constexpr,
    WIDTH: gl.constexpr,
    PARTS: gl.constexpr,
    EPILOGUE: gl.constexpr,
    VARIANT: gl.constexpr,
):
    """Through shared memory, a part of the columns at a time; the last part is still on its way when this returns."""
    if PARTS == 1:
        send(c, EPILOGUE(sums, row, col, extras, VARIANT).to(c.dtype), c_part, row, col)
    else:
        half: gl.constexpr = WIDTH // 2
        narrow: gl.constexpr = gl.NVMMADistributedLayout(
            version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, half, 16]
        )
        low, high = sums.reshape((ROWS, 2, half)).permute((0, 2, 1)).split()
        store(c, gl.convert_layout(low, narrow), extras, c_part, row, col, ROWS, half, PARTS // 2, EPILOGUE, VARIANT)
        store(
            c,
            gl.convert_layout(high, narrow),
            extras,
            c_part,
            row,
            col + half,
            ROWS,
            half,
            PARTS // 2,
            EPILOGUE,
            VARIANT,
        )


@gluon.jit
def unchanged(sums, row, col, extras, VARIANT: gl.constexpr):
    """The epilogue of a bare product."""
    return sums


@gluon.jit
def product_roles(
    a, b, c, extras, blocks_m, blocks_n, steps,
    ROWS: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr, GROUP: gl.constexpr,
    A: gl.constexpr, B: gl.constexpr,
    EPILOGUE: gl.constexpr, VARIANT: gl.constexpr, EARLY: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """c = epilogue(a @ b): both pipelines, their barriers, and who does what."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    a_ring = gl.allocate_shared_memory(a.dtype, [2 * STAGES, a.block_shape[0], a.block_shape[1]], a.layout)
    b_ring = gl.allocate_shared_memory(b.dtype, [STAGES, b.block_shape[0], b.block_shape[1]], b.layout)
    c_parts = gl.allocate_shared_memory(c.dtype, [2, ROWS, BLOCK_N // PARTS], c.layout)
    full, free = barriers(STAGES, 2)
    gl.warp_specialize(
        [
            (
                consume,
                (
                    c,
                    extras,
                    a_ring,
                    b_ring,
                    c_parts.index(0),
                    full,
                    free,
                    blocks_m,
                    blocks_n,
                    steps,
                    0,
                    ROWS,
                    BLOCK_N,
                    STAGES,
                    PARTS,
                    GROUP,
                    A,
                    B,
                    EPILOGUE,
                    VARIANT,
                ),
            ),
            (
                consume,
                (
                    c,
                    extras,
                    a_ring,
                    b_ring,
                    c_parts.index(1),
                    full,
                    free,
                    blocks_m,
                    blocks_n,
                    steps,
                    1,
                    ROWS,
                    BLOCK_N,
                    STAGES,
                    PARTS,
                    GROUP,
                    A,
                    B,
                    EPILOGUE,
                    VARIANT,
                ),
            ),
            (
                produce,
                (a, b, a_ring, b_ring, full, free, blocks_m, blocks_n, steps, ROWS, BLOCK_N, STAGES, GROUP, A, B),
            ),
        ],
        [4, 1],
        [240, 24],
    )


def described(matrix, way, height, width):
    """A TMA descriptor for [height, width] tiles of a matrix, read along its rows or its columns."""
    if way == "columns":
        matrix, height, width = matrix.T, width, height
    layout = gl.NVMMASharedLayout.get_default_for([height, width], FORMATS[matrix.dtype])
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [height, width], layout)


RINGS = {(128, 256): (3, 1), (128, 128): (6, 1), (128, 64): (6, 1)}
"""Stages, and parts of the way out, with tiles of this size: two consumers of 64 rows."""


def launch_roles(
    a, b, c, epilogue=unchanged, extras=(), variant=None, *, BLOCK_N, ROWS, STAGES, PARTS, GROUP, EARLY=False
):
    """c [m, n] = epilogue(a [m, k] @ b [k, n]) by `product_roles`. False, and nothing is done, where TMA cannot
    address a matrix.

    With zeros for BLOCK_N, STAGES and PARTS the tile is the one of which a multiprocessor computes least
    (`least_work`).
    """
    (m, k), n = a.shape, b.shape[1]
    a_way, b_way = how(a), how(b)
    if "pointers" in (a_way, b_way) or how(c) != "rows":
        return False
    if BLOCK_N == 0:
        tile = least_work(m, n, multiprocessors(c), RINGS, weights=WEIGHTS_OF_ROLES)
        ROWS, BLOCK_N, (STAGES, PARTS) = 64, tile[1], RINGS[tile]
    blocks_m, blocks_n = triton.cdiv(m, 2 * ROWS), triton.cdiv(n, BLOCK_N)
    product_roles[(min(multiprocessors(c), blocks_m * blocks_n),)](
        described(a, a_way, ROWS, 64), described(b, b_way, 64, BLOCK_N), described(c, "rows", ROWS, BLOCK_N // PARTS),
        extras, blocks_m, blocks_n, triton.cdiv(k, 64),
        ROWS=ROWS, BLOCK_N=BLOCK_N, STAGES=STAGES, PARTS=PARTS, GROUP=GROUP, A=a_way, B=b_way, EPILOGUE=epilogue,
        VARIANT=variant, num_warps=4, **early(EARLY, c),
    )  # fmt: skip
    return True
