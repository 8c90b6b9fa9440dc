"""float32 at the rate of tensor cores: each operand is split into three bfloat16 numbers, and six of their nine
products are added up.

moves     a and b are read once and written once as 6 bytes an element, then read as in triton_gluon
idea      24 bits of a float32 are 8 + 8 + 8 bits of three bfloat16 of the same range; products of parts i and j with i
          + j > 2 lie below 2^-24 of the result. tf32 takes three products at half the rate for 22 bits, and asks for
          both operands terms first
precision the leading products and the five small ones have sums of their own, and the leading sums move to float32
registers every 256
          terms, because tensor cores cut off where float32 rounds. Infinite and NaN elements have no small parts
limits    sm_90a alone (wgmma); a workspace of 6 * (m + n) * k bytes
source    splitting as in Henry, Tang and Heinecke, Leveraging the bfloat16 artificial intelligence datatype for
          higher-precision computations, ARITH 2019
"""

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from opforge.device.triton.gemm import multiprocessors
from opforge.device.triton.roles import barriers, described, place

ARCH = "sm_90a"
DTYPES = ("float32",)
LAYOUTS = ("contiguous", "rows", "strided")
SUPPORTS = {"an_operand_to_split": "k > 0", "digits_worth_three_parts": "precision == 'ieee'"}
SPACE = {"STAGES": (3, 4), "GROUP": (4, 8, 16), "PROMOTE": (4, 8, 16)}
DEFAULT = {"STAGES": 4, "GROUP": 8, "PROMOTE": 8}
ROWS = tl.constexpr(64)
WIDTH = tl.constexpr(128)
TERMS = tl.constexpr(32)


@triton.jit
def split(
    source, parts, rows, cols, row_stride, col_stride, padded, plane, HEIGHT: tl.constexpr, BREADTH: tl.constexpr
):
    """Three bfloat16 matrices, one below the other, whose sum is the source to 24 bits."""
    # int64: row * stride leaves int32 beyond 2^31 elements
    r = (tl.program_id(0) * HEIGHT + tl.arange(0, HEIGHT)).to(tl.int64)[:, None]
    c = (tl.program_id(1) * BREADTH + tl.arange(0, BREADTH)).to(tl.int64)[None, :]
    inside = (r < rows) & (c < cols)
    x = tl.load(source + r * row_stride + c * col_stride, mask=inside, other=0.0)
    finite = tl.abs(x) <= 3.4028234663852886e38
    # the largest float32 would round to an infinite bfloat16: it becomes the largest finite one, and the middle part
    # makes up for it
    high = tl.where(finite, tl.clamp(x, -3.3895313892515355e38, 3.3895313892515355e38), x).to(tl.bfloat16)
    rest = tl.where(finite, x - high.to(tl.float32), 0.0)
    middle = rest.to(tl.bfloat16)
    low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
    at = parts + r * padded + c
    tl.store(at, high, mask=inside)
    tl.store(at + plane, middle, mask=inside)
    tl.store(at + plane + plane, low, mask=inside)


@gluon.jit
def produce(
    a, b, a_ring, b_ring, full, free, m, k, blocks_m, blocks_n, steps, STAGES: gl.constexpr, GROUP: gl.constexpr
):
    """Fill the pipeline: of each operand all three parts, so that one visit to memory serves six products.

    A tile that reaches past the last row of a part holds the next part's first rows: of a they belong to no row of c,
    of b they meet the zeros that TMA puts beyond a's last column, and only the first part, which follows none, may hold
    what is not finite.
    """
    count = 0
    for tile in range(gl.program_id(0), blocks_m * blocks_n, gl.num_programs(0)):
        block_m, block_n = place(tile, blocks_m, blocks_n, GROUP)
        for step in range(steps):
            stage = count % STAGES
            mbarrier.wait(free.index(stage), (count // STAGES & 1) ^ 1)
            bar = full.index(stage)
            mbarrier.expect(bar, 6 * a.block_type.nbytes + 3 * b.block_type.nbytes)
            for part in gl.static_range(3):
                tma.async_copy_global_to_shared(
                    a, [part * m + block_m * 2 * ROWS, step * TERMS], bar, a_ring.index(6 * stage + part)
                )
                tma.async_copy_global_to_shared(
                    a, [part * m + block_m * 2 * ROWS + ROWS, step * TERMS], bar, a_ring.index(6 * stage + 3 + part)
                )
                tma.async_copy_global_to_shared(
                    b, [part * k + step * TERMS, block_n * WIDTH], bar, b_ring.index(3 * stage + part)
                )
            count += 1


@gluon.jit
def consume(
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
    ME: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    PROMOTE: gl.constexpr,
):
    """Six products a stage; the small ones first, so that the leading one's sum is waited for least."""
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, WIDTH, 16])
    count = 0
    for tile in range(gl.program_id(0), blocks_m * blocks_n, gl.num_programs(0)):
        block_m, block_n = place(tile, blocks_m, blocks_n, GROUP)
        total = gl.zeros((ROWS, WIDTH), gl.float32, layout)
        leading = gl.zeros((ROWS, WIDTH), gl.float32, layout)
        small = gl.zeros((ROWS, WIDTH), gl.float32, layout)
        for step in range(steps):
            stage = count % STAGES
            mbarrier.wait(full.index(stage), count // STAGES & 1)
            a0 = a_ring.index(6 * stage + 3 * ME)
            a1 = a_ring.index(6 * stage + 3 * ME + 1)
            a2 = a_ring.index(6 * stage + 3 * ME + 2)
            b0 = b_ring.index(3 * stage)
            b1 = b_ring.index(3 * stage + 1)
            b2 = b_ring.index(3 * stage + 2)
            leading = warpgroup_mma(a0, b0, leading, use_acc=step % PROMOTE != 0, is_async=True)
            small = warpgroup_mma(a2, b0, small, is_async=True)
            small = warpgroup_mma(a0, b2, small, is_async=True)
            small = warpgroup_mma(a1, b1, small, is_async=True)
            small = warpgroup_mma(a1, b0, small, is_async=True)
            small = warpgroup_mma(a0, b1, small, is_async=True)
            leading, small = warpgroup_mma_wait(num_outstanding=0, deps=[leading, small])
            mbarrier.arrive(free.index(stage), count=1)
            if step % PROMOTE == PROMOTE - 1:
                total += leading
            count += 1
        if steps % PROMOTE != 0:
            total += leading
        # where an element is not finite the small parts have nothing to add, and infinity times a small part of the
        # other sign would be NaN
        result = gl.where(gl.abs(total) <= 3.4028234663852886e38, total + small, total)
        row = block_m * 2 * ROWS + ME * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
        col = block_n * WIDTH + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout))
        at = c + row.to(gl.int64)[:, None] * c_row + col.to(gl.int64)[None, :] * c_col
        gl.store(at, result, mask=(row < m)[:, None] & (col < n)[None, :])


@gluon.jit
def product_of_parts(
    a,
    b,
    c,
    m,
    n,
    k,
    c_row,
    c_col,
    blocks_m,
    blocks_n,
    steps,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    PROMOTE: gl.constexpr,
    num_warps: gl.constexpr,
):
    a_ring = gl.allocate_shared_memory(a.dtype, [6 * STAGES, ROWS, TERMS], a.layout)
    b_ring = gl.allocate_shared_memory(b.dtype, [3 * STAGES, TERMS, WIDTH], b.layout)
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
                    STAGES,
                    GROUP,
                    PROMOTE,
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
                    STAGES,
                    GROUP,
                    PROMOTE,
                ),
            ),
            (produce, (a, b, a_ring, b_ring, full, free, m, k, blocks_m, blocks_n, steps, STAGES, GROUP)),
        ],
        [4, 1],
        [240, 24],
    )


def parts_of(matrix):
    """Three bfloat16 parts of a matrix, one below the other, rows padded to 16 bytes: [3 * rows, cols] with a
    stride.
    """
    rows, cols = matrix.shape
    padded = -(-cols // 8) * 8
    parts = torch.empty_strided((3 * rows, cols), (padded, 1), dtype=torch.bfloat16, device=matrix.device)
    split[(triton.cdiv(rows, 16), triton.cdiv(cols, 256))](
        matrix, parts, rows, cols, *matrix.stride(), padded, rows * padded, HEIGHT=16, BREADTH=256, num_warps=4
    )
    return parts


def launch(a, b, c, *, precision, STAGES, GROUP, PROMOTE):
    (m, k), n = a.shape, b.shape[1]
    blocks_m, blocks_n = triton.cdiv(m, 128), triton.cdiv(n, 128)
    product_of_parts[(min(multiprocessors(c), blocks_m * blocks_n),)](
        described(parts_of(a), "rows", 64, 32), described(parts_of(b), "rows", 32, 128), c, m, n, k, *c.stride(),
        blocks_m, blocks_n, triton.cdiv(k, 32),
        STAGES=STAGES, GROUP=GROUP, PROMOTE=PROMOTE, num_warps=4,
    )  # fmt: skip
