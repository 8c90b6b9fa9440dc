"""Gluon: the roles of ../matmul/triton_gluon with FP8 operands, and sums that move to float32 registers after every 128 terms.

moves     a is read cdiv(n, 128) times and b cdiv(m, 256) times, mostly from the second-level cache
idea      Hopper's tensor cores keep some 14 bits of a sum of FP8 products, so each stage of 128 terms begins a new one; while one
          warpgroup adds its 64 x 128 sums to those before, the other one has the tensor cores. Scales meet the final sums
limits    sm_90 alone (wgmma); an operand that TMA cannot walk (rows not at multiples of 16 bytes, terms not side by side) takes a
          plain kernel with masks
"""

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

ARCH = "sm_90a"
LAYOUTS = ("contiguous", "rows", "strided")
SPACE = {"STAGES": (2, 3, 4), "GROUP": (2, 4, 8, 16)}
LIMITS = {"stages_fit_shared_memory": "384 * 128 * STAGES + 2 * 64 * 128 * 2 + 1024 <= 232448"}
DEFAULT = {"STAGES": 4, "GROUP": 4}
HALF = tl.constexpr(64)
WIDTH = tl.constexpr(128)
TERMS = tl.constexpr(128)


@gluon.jit
def place(tile, blocks_m, blocks_n, GROUP: gl.constexpr):
    """The row and column of a tile: GROUP rows of tiles are walked column by column."""
    first = tile // (GROUP * blocks_n) * GROUP
    height = min(blocks_m - first, GROUP)
    return first + tile % (GROUP * blocks_n) % height, tile % (GROUP * blocks_n) // height


@gluon.jit
def produce(a, b, a_ring, b_ring, full, free, blocks_m, blocks_n, steps, STAGES: gl.constexpr, GROUP: gl.constexpr):
    """Fill the ring: four pieces of 64 rows of a, two for each consumer, and the tile of b that they share."""
    count = 0
    for tile in range(gl.program_id(0), blocks_m * blocks_n, gl.num_programs(0)):
        block_m, block_n = place(tile, blocks_m, blocks_n, GROUP)
        for step in range(steps):
            stage = count % STAGES
            mbarrier.wait(free.index(stage), (count // STAGES & 1) ^ 1)
            bar = full.index(stage)
            mbarrier.expect(bar, 4 * a.block_type.nbytes + b.block_type.nbytes)
            for piece in gl.static_range(4):
                tma.async_copy_global_to_shared(a, [(block_m * 4 + piece) * HALF, step * TERMS], bar, a_ring.index(4 * stage + piece))
            tma.async_copy_global_to_shared(b, [block_n * WIDTH, step * TERMS], bar, b_ring.index(stage))
            count += 1


@gluon.jit
def consume(y, scale_a, scale_b, m, n, a_step, b_step, a_ring, b_ring, y_part, full, free, blocks_m, blocks_n, steps, ME: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr):
    """128 rows in two halves: multiply a stage from nothing, add it to what there is."""
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
        row, col = block_m * 4 * HALF + ME * 2 * HALF, block_n * WIDTH
        q = col + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout))
        by_col = gl.load(scale_b + q.to(gl.int64) * b_step, mask=q < n, other=0.0)
        store(y, upper, by_col, scale_a, m, a_step, y_part, row, col)
        store(y, lower, by_col, scale_a, m, a_step, y_part, row + HALF, col)
    tma.store_wait(0)


@gluon.jit
def store(y, sums, by_col, scale_a, m, a_step, y_part, row, col):
    """Scaled, through shared memory; still on its way when this returns."""
    r = row + gl.arange(0, HALF, layout=gl.SliceLayout(1, sums.type.layout))
    by_row = gl.load(scale_a + r.to(gl.int64) * a_step, mask=r < m, other=0.0)
    result = (sums * by_row[:, None] * by_col[None, :]).to(y.dtype)
    tma.store_wait(0)
    gl.thread_barrier()
    y_part.store(result)
    fence_async_shared()
    gl.thread_barrier()
    tma.async_copy_shared_to_global(y, [row, col], y_part)


@gluon.jit
def scaled_roles(a, b, y, scale_a, scale_b, m, n, a_step, b_step, blocks_m, blocks_n, steps, STAGES: gl.constexpr, GROUP: gl.constexpr, num_warps: gl.constexpr):
    a_ring = gl.allocate_shared_memory(a.dtype, [4 * STAGES, HALF, TERMS], a.layout)
    b_ring = gl.allocate_shared_memory(b.dtype, [STAGES, WIDTH, TERMS], b.layout)
    y_parts = gl.allocate_shared_memory(y.dtype, [2, HALF, WIDTH], y.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(free.index(stage), count=2)
    fence_async_shared()
    gl.thread_barrier()
    gl.warp_specialize(
        [
            (consume, (y, scale_a, scale_b, m, n, a_step, b_step, a_ring, b_ring, y_parts.index(0), full, free, blocks_m, blocks_n, steps, 0, STAGES, GROUP)),
            (consume, (y, scale_a, scale_b, m, n, a_step, b_step, a_ring, b_ring, y_parts.index(1), full, free, blocks_m, blocks_n, steps, 1, STAGES, GROUP)),
            (produce, (a, b, a_ring, b_ring, full, free, blocks_m, blocks_n, steps, STAGES, GROUP)),
        ],
        [4, 1],
        [240, 24],
    )


@triton.jit
def scaled_masked(a, b, scale_a, scale_b, y, m, n, k, a_row, a_col, b_row, b_col, a_step, b_step, y_row, y_col, BLOCK: tl.constexpr):
    row = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    col = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    sums = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, k, 128):
        term = (start + tl.arange(0, 128)).to(tl.int64)
        left = tl.load(a + row[:, None] * a_row + term[None, :] * a_col, mask=(row < m)[:, None] & (term[None, :] < k), other=0.0)
        right = tl.load(b + term[:, None] * b_col + col[None, :] * b_row, mask=(term[:, None] < k) & (col < n)[None, :], other=0.0)
        sums += tl.dot(left, right)
    sums *= tl.load(scale_a + row * a_step, mask=row < m, other=0.0)[:, None]
    sums *= tl.load(scale_b + col * b_step, mask=col < n, other=0.0)[None, :]
    tl.store(y + row[:, None] * y_row + col[None, :] * y_col, sums.to(y.dtype.element_ty), mask=(row < m)[:, None] & (col < n)[None, :])


def walkable(matrix):
    """Whether TMA can walk the rows of a matrix: elements side by side, rows at multiples of 16 bytes."""
    step = matrix.stride(0) * matrix.element_size()
    return matrix.numel() > 0 and matrix.data_ptr() % 16 == 0 and matrix.stride(1) == 1 and step % 16 == 0 and matrix.stride(0) >= matrix.shape[1]


FORMATS = {torch.float8_e4m3fn: gl.float8e4nv, torch.float8_e5m2: gl.float8e5, torch.bfloat16: gl.bfloat16}


def described(matrix, height, width):
    """A TMA descriptor for [height, width] tiles of a matrix."""
    layout = gl.NVMMASharedLayout.get_default_for([height, width], FORMATS[matrix.dtype])
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [height, width], layout)


def launch(a, b, scale_a, scale_b, y, *, STAGES, GROUP):
    (m, k), n = a.shape, b.shape[0]
    steps = (scale_a.stride(0), scale_b.stride(0))
    if not (walkable(a) and walkable(b) and walkable(y)):
        grid = (triton.cdiv(m, 64), triton.cdiv(n, 64))
        scaled_masked[grid](a, b, scale_a, scale_b, y, m, n, k, *a.stride(), *b.stride(), *steps, *y.stride(), BLOCK=64, num_warps=4, num_stages=2)
        return
    blocks_m, blocks_n = triton.cdiv(m, 256), triton.cdiv(n, 128)
    programs = torch.cuda.get_device_properties(y.device).multi_processor_count if y.is_cuda else 132
    scaled_roles[(min(programs, blocks_m * blocks_n),)](
        described(a, 64, 128), described(b, 128, 128), described(y, 64, 128), scale_a, scale_b, m, n, *steps,
        blocks_m, blocks_n, triton.cdiv(k, 128), STAGES=STAGES, GROUP=GROUP, num_warps=4,
    )  # fmt: skip
