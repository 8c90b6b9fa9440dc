"""The roles of ../matmul/triton_gluon; each consumer adds the bias and applies the activation in registers while the producer runs ahead.

moves     x, w and bias once, y once. A library that applies the activation afterwards writes and reads 2 * rows * n elements more
idea      the epilogue costs no pass and little time: the loads of the next tile are under way, and the store is TMA's business
limits    sm_90 alone (wgmma); an operand that TMA cannot walk (rows or columns not at multiples of 16 bytes) takes a plain kernel with masks
"""

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

ARCH = "sm_90a"
DTYPES = ("float16", "bfloat16")
LAYOUTS = ("contiguous", "rows", "strided")
SPACE = {"BLOCK_N": (64, 128, 256), "ROWS": (64, 128), "STAGES": (3, 4, 5, 6), "PARTS": (1, 2, 4), "GROUP": (4, 8, 16)}
LIMITS = {
    "stages_fit_shared_memory": "(2 * ROWS + BLOCK_N) * 128 * STAGES + 4 * ROWS * BLOCK_N // PARTS + 1024 <= 232448",
    "sums_fit_registers": "ROWS * BLOCK_N <= 64 * 256",
}
DEFAULT = {"BLOCK_N": 256, "ROWS": 64, "STAGES": 3, "PARTS": 1, "GROUP": 8}
BLOCK_K = tl.constexpr(64)


@gluon.jit
def place(tile, blocks_m, blocks_n, GROUP: gl.constexpr):
    """The row and column of a tile: GROUP rows of tiles are walked column by column."""
    first = tile // (GROUP * blocks_n) * GROUP
    height = min(blocks_m - first, GROUP)
    return first + tile % (GROUP * blocks_n) % height, tile % (GROUP * blocks_n) // height


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
    ROWS: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    A: gl.constexpr,
    B: gl.constexpr,
):
    """Fill the ring: both consumers' rows of a, and the tile of b that they share."""
    count = 0
    for tile in range(gl.program_id(0), blocks_m * blocks_n, gl.num_programs(0)):
        block_m, block_n = place(tile, blocks_m, blocks_n, GROUP)
        row, col = block_m * 2 * ROWS, block_n * BLOCK_N
        for step in range(steps):
            stage = count % STAGES
            mbarrier.wait(free.index(stage), (count // STAGES & 1) ^ 1)
            bar = full.index(stage)
            mbarrier.expect(bar, 2 * a.block_type.nbytes + b.block_type.nbytes)
            term = step * BLOCK_K
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
def activated(z, ACTIVATION: gl.constexpr):
    """The activation of float32 values."""
    if ACTIVATION == "relu":
        return gl.where(z < 0, 0.0, z)  # asked this way round, NaN stays
    elif ACTIVATION == "silu":
        return z / (1 + gl.exp2(-1.4426950409 * z))
    elif ACTIVATION == "gelu":
        # the tail of the normal distribution: Abramowitz and Stegun 7.1.26 with the argument scaled by 1/sqrt(2)
        t = 1 / (1 + 0.2316418882 * gl.abs(z))
        tail = gl.exp2(z * z * -0.7213475204) * t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
        return z * gl.where(z > 0, 1 - tail, tail)
    else:
        return z


@gluon.jit
def consume(
    c,
    bias,
    n,
    bias_step,
    a_ring,
    b_ring,
    c_part,
    full,
    free,
    blocks_m,
    blocks_n,
    steps,
    ME: gl.constexpr,
    ROWS: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    PARTS: gl.constexpr,
    GROUP: gl.constexpr,
    A: gl.constexpr,
    B: gl.constexpr,
    ACTIVATION: gl.constexpr,
):
    """Multiply what is in the ring, with one product in flight while the one before it gives its stage back; store the tile in PARTS."""
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16])
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
        store(c, sums, bias, n, bias_step, c_part, block_m * 2 * ROWS + ME * ROWS, block_n * BLOCK_N, ROWS, BLOCK_N, PARTS, ACTIVATION)
    tma.store_wait(0)


@gluon.jit
def store(c, sums, bias, n, bias_step, c_part, row, col, ROWS: gl.constexpr, WIDTH: gl.constexpr, PARTS: gl.constexpr, ACTIVATION: gl.constexpr):
    """Through shared memory, a part of the columns at a time; the last part is still on its way when this returns."""
    if PARTS == 1:
        q = col + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, sums.type.layout))
        shift = gl.load(bias + q.to(gl.int64) * bias_step, mask=q < n, other=0.0).to(gl.float32)
        result = activated(sums + shift[None, :], ACTIVATION).to(c.dtype)
        tma.store_wait(0)
        gl.thread_barrier()
        c_part.store(result)
        fence_async_shared()
        gl.thread_barrier()
        tma.async_copy_shared_to_global(c, [row, col], c_part)
    else:
        half: gl.constexpr = WIDTH // 2
        narrow: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, half, 16])
        low, high = sums.reshape((ROWS, 2, half)).permute((0, 2, 1)).split()
        store(c, gl.convert_layout(low, narrow), bias, n, bias_step, c_part, row, col, ROWS, half, PARTS // 2, ACTIVATION)
        store(c, gl.convert_layout(high, narrow), bias, n, bias_step, c_part, row, col + half, ROWS, half, PARTS // 2, ACTIVATION)


@gluon.jit
def linear_roles(
    a,
    b,
    c,
    bias,
    n,
    bias_step,
    blocks_m,
    blocks_n,
    steps,
    ROWS: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    PARTS: gl.constexpr,
    GROUP: gl.constexpr,
    A: gl.constexpr,
    B: gl.constexpr,
    ACTIVATION: gl.constexpr,
    num_warps: gl.constexpr,
):
    a_ring = gl.allocate_shared_memory(a.dtype, [2 * STAGES, a.block_shape[0], a.block_shape[1]], a.layout)
    b_ring = gl.allocate_shared_memory(b.dtype, [STAGES, b.block_shape[0], b.block_shape[1]], b.layout)
    c_parts = gl.allocate_shared_memory(c.dtype, [2, ROWS, BLOCK_N // PARTS], c.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(free.index(stage), count=2)
    fence_async_shared()
    gl.thread_barrier()
    gl.warp_specialize(
        [
            (consume, (c, bias, n, bias_step, a_ring, b_ring, c_parts.index(0), full, free, blocks_m, blocks_n, steps, 0, ROWS, BLOCK_N, STAGES, PARTS, GROUP, A, B, ACTIVATION)),
            (consume, (c, bias, n, bias_step, a_ring, b_ring, c_parts.index(1), full, free, blocks_m, blocks_n, steps, 1, ROWS, BLOCK_N, STAGES, PARTS, GROUP, A, B, ACTIVATION)),
            (produce, (a, b, a_ring, b_ring, full, free, blocks_m, blocks_n, steps, ROWS, BLOCK_N, STAGES, GROUP, A, B)),
        ],
        [4, 1],
        [240, 24],
    )


@triton.jit
def activated_masked(z, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        return tl.where(z < 0, 0.0, z)
    elif ACTIVATION == "silu":
        return z / (1 + tl.exp2(-1.4426950409 * z))
    elif ACTIVATION == "gelu":
        t = 1 / (1 + 0.2316418882 * tl.abs(z))
        tail = tl.exp2(z * z * -0.7213475204) * t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
        return z * tl.where(z > 0, 1 - tail, tail)
    else:
        return z


@triton.jit
def linear_masked(a, b, bias, c, m, n, k, a_row, a_col, b_row, b_col, bias_step, c_row, c_col, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    row = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)[:, None]
    col = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    sums = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, k, 64):
        term = (start + tl.arange(0, 64)).to(tl.int64)
        left = tl.load(a + row * a_row + term[None, :] * a_col, mask=(row < m) & (term[None, :] < k), other=0.0)
        right = tl.load(b + term[:, None] * b_row + col[None, :] * b_col, mask=(term[:, None] < k) & (col[None, :] < n), other=0.0)
        sums = tl.dot(left, right, sums)
    shift = tl.load(bias + col * bias_step, mask=col < n, other=0.0).to(tl.float32)
    result = activated_masked(sums + shift[None, :], ACTIVATION)
    tl.store(c + row * c_row + col[None, :] * c_col, result.to(c.dtype.element_ty), mask=(row < m) & (col[None, :] < n))


def how(matrix):
    """How TMA can walk a matrix: along its rows, its columns, or (sizes or addresses that are no multiples of 16 bytes) not at all."""
    if matrix.numel() and matrix.data_ptr() % 16 == 0:
        for name, inner, outer in (("rows", 1, 0), ("columns", 0, 1)):
            stride = matrix.stride(outer)
            if matrix.stride(inner) == 1 and stride * matrix.element_size() % 16 == 0 and stride >= matrix.shape[inner]:
                return name
    return "pointers"


def described(matrix, way, height, width):
    """A TMA descriptor for [height, width] tiles of a matrix, walked along its rows or its columns."""
    if way == "columns":
        matrix, height, width = matrix.T, width, height
    layout = gl.NVMMASharedLayout.get_default_for([height, width], gl.float16 if matrix.dtype == torch.float16 else gl.bfloat16)
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [height, width], layout)


def launch(x, w, bias, y, *, activation, BLOCK_N, ROWS, STAGES, PARTS, GROUP):
    (m, k), n = x.shape, w.shape[0]
    w = w.T
    x_way, w_way = how(x), how(w)
    if "pointers" in (x_way, w_way) or how(y) != "rows":
        strides = (*x.stride(), *w.stride(), bias.stride(0), *y.stride())
        linear_masked[(triton.cdiv(m, 128), triton.cdiv(n, 128))](x, w, bias, y, m, n, k, *strides, ACTIVATION=activation, BLOCK=128, num_warps=8, num_stages=3)
        return
    blocks_m, blocks_n = triton.cdiv(m, 2 * ROWS), triton.cdiv(n, BLOCK_N)
    programs = torch.cuda.get_device_properties(y.device).multi_processor_count if y.is_cuda else 132
    linear_roles[(min(programs, blocks_m * blocks_n),)](
        described(x, x_way, ROWS, 64), described(w, w_way, 64, BLOCK_N), described(y, "rows", ROWS, BLOCK_N // PARTS), bias, n, bias.stride(0),
        blocks_m, blocks_n, triton.cdiv(k, 64),
        ROWS=ROWS, BLOCK_N=BLOCK_N, STAGES=STAGES, PARTS=PARTS, GROUP=GROUP, A=x_way, B=w_way, ACTIVATION=activation, num_warps=4,
    )  # fmt: skip
