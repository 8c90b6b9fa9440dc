"""The tiles of ../matmul/triton_tiled with the batch as an axis of the grid; alpha and beta meet the sums in registers.

moves     a and b as triton_tiled; c once where beta is not 0. Scaling and adding afterwards would move 3 * batch * m *
          n elements more
config    zeros leave the tile to `tile_by_shape` in device/triton/gemm.py, which has what was fastest
limits    loads through pointers behind masks: right for any stride, a stride of 0 between the matrices included
precision float32 operands are multiplied in float32 ("ieee") unless TF32 is asked for
"""

import triton
import triton.language as tl

from opforge.device.triton.gemm import masked_sums, place, tile_by_shape

LAYOUTS = ("contiguous", "rows", "strided")
SPACE = {
    "BLOCK_M": (0, 16, 32, 64, 128),
    "BLOCK_N": (0, 32, 64, 128, 256),
    "BLOCK_K_BYTES": (0, 64, 128),
    "GROUP": (1, 8),
    "num_warps": (4, 8),
    "num_stages": (0, 2, 3, 4),
}
LIMITS = {
    "all_or_nothing_by_shape": "(min(BLOCK_M, BLOCK_N, BLOCK_K_BYTES, num_stages) > 0) == (max(BLOCK_M, BLOCK_N, "
    "BLOCK_K_BYTES, num_stages) > 0)",
    "nothing_beside_the_shape": "BLOCK_M > 0 or num_warps == 4",
    "stages_fit_shared_memory": "(BLOCK_M + BLOCK_N) * BLOCK_K_BYTES * num_stages <= shared_bytes_per_block",
    "sums_fit_registers": "BLOCK_M * BLOCK_N <= 4096 * num_warps",
    "every_warp_has_a_tile": "BLOCK_M == 0 or BLOCK_M * BLOCK_N >= 256 * num_warps",
    "no_block_beyond_the_result": "BLOCK_M <= max(16, 2 * m) and BLOCK_N <= max(32, 2 * n)",
}
DEFAULT = {"BLOCK_M": 0, "BLOCK_N": 0, "BLOCK_K_BYTES": 0, "GROUP": 8, "num_warps": 4, "num_stages": 0}


@triton.jit
def batched_block(
    a, b, c, y, m, n, k, alpha, beta,
    a_batch, a_row, a_col, b_batch, b_row, b_col, c_batch, c_row, c_col, y_batch, y_row, y_col,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, ADDS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    # matrices one after another: those that run at one time share operands
    blocks_m, blocks_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    matrix = (tl.program_id(0) // (blocks_m * blocks_n)).to(tl.int64)
    block_m, block_n = place(tl.program_id(0) % (blocks_m * blocks_n), blocks_m, blocks_n, GROUP)
    # int64: row * stride leaves int32 beyond 2^31 elements
    row = (block_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    col = (block_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[None, :]
    sums = masked_sums(
        a + matrix * a_batch,
        b + matrix * b_batch,
        row,
        col,
        m,
        n,
        k,
        a_row,
        a_col,
        b_row,
        b_col,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
        PRECISION,
    )
    inside = (row < m) & (col < n)
    sums *= alpha
    if ADDS:
        sums += beta * tl.load(c + matrix * c_batch + row * c_row + col * c_col, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + matrix * y_batch + row * y_row + col * y_col, sums.to(y.dtype.element_ty), mask=inside)


def launch(a, b, c, y, *, alpha, beta, precision, BLOCK_M, BLOCK_N, BLOCK_K_BYTES, GROUP, num_warps, num_stages):
    (batch, m, k), n = a.shape, b.shape[2]
    if BLOCK_M == 0:
        BLOCK_M, BLOCK_N, BLOCK_K_BYTES, num_warps, num_stages = tile_by_shape(a, b, y)
    grid = (batch * triton.cdiv(m, BLOCK_M) * triton.cdiv(n, BLOCK_N),)
    batched_block[grid](
        a, b, c, y, m, n, k, alpha, beta, *a.stride(), *b.stride(), *c.stride(), *y.stride(),
        BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K_BYTES // a.element_size(), GROUP=GROUP, ADDS=beta != 0,
        PRECISION=precision, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
