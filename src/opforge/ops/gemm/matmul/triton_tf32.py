"""Gluon: TF32 with b from registers, in the roles of triton_gluon: a producer warp, two consumer warpgroups, full and
free barriers.

moves     as triton_gluon with elements twice as large
idea      wgmma reads TF32 from shared memory with terms side by side only. c^T = b^T a^T is computed, whose first
          operand may come from registers: there b is loaded from either layout. `tl.dot` turns a b stored row by row
          round in shared memory instead, once more for each step
precision factors of 11 bits, cut off; sums in float32 from the first term to the last, in the tensor cores
limits    sm_90a alone (wgmma); an operand that TMA cannot address, and an a stored column by column, go the way of
          triton_pipelined
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from opforge.device.triton.gemm import how, launch_ring, multiprocessors
from opforge.device.triton.roles import barriers, described, place

ARCH = "sm_90a"
DTYPES = ("float32",)
LAYOUTS = ("contiguous", "rows", "strided")
SUPPORTS = {"products_of_tensor_cores": "precision == 'tf32'", "an_operand_to_point_at": "k > 0"}
SPACE = {"HEIGHT": (64, 128, 256), "STAGES": (3, 4, 5, 6), "GROUP": (4, 8, 16)}
LIMITS = {"stages_fit_shared_memory": "(128 + HEIGHT) * 128 * STAGES + 1024 <= shared_bytes_per_block"}
DEFAULT = {"HEIGHT": 256, "STAGES": 4, "GROUP": 8}
ELSEWHERE = {
    "BLOCK_M": 128,
    "BLOCK_N": 128,
    "BLOCK_K_BYTES": 128,
    "GROUP": 8,
    "PERSISTENT": False,
    "PARTS": 1,
    "num_warps": 8,
    "num_stages": 3,
}
COLUMNS = gl.constexpr(64)
"""Of c, for each consumer."""
TERMS = gl.constexpr(32)
"""Of a step: 128 bytes of a row, as wide as the widest swizzle."""


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
    HEIGHT: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    B: gl.constexpr,
):
    """Fill the pipeline: both consumers' columns of b, and the tile of a that they share."""
    count = 0
    for tile in range(gl.program_id(0), blocks_m * blocks_n, gl.num_programs(0)):
        # columns of tiles are visited in groups, as the rows of c^T that they are
        block_n, block_m = place(tile, blocks_n, blocks_m, GROUP)
        row, col = block_m * HEIGHT, block_n * 2 * COLUMNS
        for step in range(steps):
            stage = count % STAGES
            mbarrier.wait(free.index(stage), (count // STAGES & 1) ^ 1)
            bar = full.index(stage)
            mbarrier.expect(bar, a.block_type.nbytes + 2 * b.block_type.nbytes)
            term = step * TERMS
            if B == "rows":
                tma.async_copy_global_to_shared(b, [term, col], bar, b_ring.index(2 * stage))
                tma.async_copy_global_to_shared(b, [term, col + COLUMNS], bar, b_ring.index(2 * stage + 1))
            else:
                tma.async_copy_global_to_shared(b, [col, term], bar, b_ring.index(2 * stage))
                tma.async_copy_global_to_shared(b, [col + COLUMNS, term], bar, b_ring.index(2 * stage + 1))
            tma.async_copy_global_to_shared(a, [row, term], bar, a_ring.index(stage))
            count += 1


@gluon.jit
def columns_of(b_ring, full, count, ME: gl.constexpr, STAGES: gl.constexpr, B: gl.constexpr, LAYOUT: gl.constexpr):
    """This consumer's columns of b, as rows of the first operand, once step number `count` is there."""
    mbarrier.wait(full.index(count % STAGES), count // STAGES & 1)
    columns = b_ring.index(2 * (count % STAGES) + ME)
    if B == "rows":
        columns = columns.permute((1, 0))
    return columns.load(gl.DotOperandLayout(operand_index=0, parent=LAYOUT, k_width=1))


@gluon.jit
def consume(
    c, m, n, c_row, c_col, a_ring, b_ring, full, free, blocks_m, blocks_n, steps,
    ME: gl.constexpr, HEIGHT: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr, B: gl.constexpr,
):  # fmt: skip
    """Multiply what is in the pipeline; while a step's products run, b of the next one is loaded into other
    registers.
    """
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, HEIGHT, 8])
    count = 0
    for tile in range(gl.program_id(0), blocks_m * blocks_n, gl.num_programs(0)):
        block_n, block_m = place(tile, blocks_n, blocks_m, GROUP)
        sums = gl.zeros((COLUMNS, HEIGHT), gl.float32, layout)
        left = columns_of(b_ring, full, count, ME, STAGES, B, layout)
        for _ in range(steps - 1):
            # wgmma has no other products of float32, and Gluon's default says so
            sums = warpgroup_mma(left, a_ring.index(count % STAGES).permute((1, 0)), sums, is_async=True)
            following = columns_of(b_ring, full, count + 1, ME, STAGES, B, layout)
            sums, left = warpgroup_mma_wait(num_outstanding=0, deps=[sums, left])
            mbarrier.arrive(free.index(count % STAGES), count=1)
            left = following
            count += 1
        sums = warpgroup_mma(left, a_ring.index(count % STAGES).permute((1, 0)), sums, is_async=True)
        sums, left = warpgroup_mma_wait(num_outstanding=0, deps=[sums, left])
        mbarrier.arrive(free.index(count % STAGES), count=1)
        count += 1
        col = block_n * 2 * COLUMNS + ME * COLUMNS + gl.arange(0, COLUMNS, layout=gl.SliceLayout(1, layout))
        row = block_m * HEIGHT + gl.arange(0, HEIGHT, layout=gl.SliceLayout(0, layout))
        at = c + col.to(gl.int64)[:, None] * c_col + row.to(gl.int64)[None, :] * c_row
        gl.store(at, sums, mask=(col < n)[:, None] & (row < m)[None, :])


@gluon.jit
def product_turned(
    a,
    b,
    c,
    m,
    n,
    c_row,
    c_col,
    blocks_m,
    blocks_n,
    steps,
    HEIGHT: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    B: gl.constexpr,
    num_warps: gl.constexpr,
):
    a_ring = gl.allocate_shared_memory(a.dtype, [STAGES, a.block_shape[0], a.block_shape[1]], a.layout)
    b_ring = gl.allocate_shared_memory(b.dtype, [2 * STAGES, b.block_shape[0], b.block_shape[1]], b.layout)
    full, free = barriers(STAGES, 2)
    gl.warp_specialize(
        [
            (
                consume,
                (
                    c,
                    m,
                    n,
                    c_row,
                    c_col,
                    a_ring,
                    b_ring,
                    full,
                    free,
                    blocks_m,
                    blocks_n,
                    steps,
                    0,
                    HEIGHT,
                    STAGES,
                    GROUP,
                    B,
                ),
            ),
            (
                consume,
                (
                    c,
                    m,
                    n,
                    c_row,
                    c_col,
                    a_ring,
                    b_ring,
                    full,
                    free,
                    blocks_m,
                    blocks_n,
                    steps,
                    1,
                    HEIGHT,
                    STAGES,
                    GROUP,
                    B,
                ),
            ),
            (produce, (a, b, a_ring, b_ring, full, free, blocks_m, blocks_n, steps, HEIGHT, STAGES, GROUP, B)),
        ],
        [4, 1],
        [240, 24],
    )


def launch(a, b, c, *, precision, HEIGHT, STAGES, GROUP):
    (m, k), n = a.shape, b.shape[1]
    b_way = how(b)
    if how(a) != "rows" or b_way == "pointers":
        launch_ring(a, b, c, precision=precision, **ELSEWHERE)
        return
    blocks_m, blocks_n = triton.cdiv(m, HEIGHT), triton.cdiv(n, 128)
    product_turned[(min(multiprocessors(c), blocks_m * blocks_n),)](
        described(a, "rows", HEIGHT, 32), described(b, b_way, 32, 64), c, m, n, *c.stride(), blocks_m, blocks_n,
        triton.cdiv(k, 32),
        HEIGHT=HEIGHT, STAGES=STAGES, GROUP=GROUP, B=b_way, num_warps=4,
    )  # fmt: skip
