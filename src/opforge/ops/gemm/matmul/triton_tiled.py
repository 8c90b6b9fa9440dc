"""One program per block of c, k in pipelined steps, blocks visited in groups that share rows of b in
cache.

moves     a is read cdiv(n, BLOCK_N) times and b cdiv(m, BLOCK_M) times, mostly from the second-level cache
code      the loop over k is `masked_sums` in device/triton/gemm.py
config    zeros leave the tile to `tile_by_shape` in device/triton/gemm.py, which has what was fastest
limits    few blocks leave most of a GPU idle: small m and n with a large k want the k axis split as well
precision float32 operands are multiplied in float32 ("ieee") unless TF32 is asked for
"""

import triton
import triton.language as tl

from opforge.device.triton.gemm import masked_sums, place, tile_by_shape

LAYOUTS = ("contiguous", "rows", "strided")
SPACE = {
    "BLOCK_M": (0, 16, 32, 64, 128, 256),
    "BLOCK_N": (0, 32, 64, 128, 256),
    "BLOCK_K_BYTES": (0, 64, 128, 256),
    "GROUP": (1, 4, 8, 16),
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
def matmul_block(
    a,
    b,
    c,
    m,
    n,
    k,
    a_row,
    a_col,
    b_row,
    b_col,
    c_row,
    c_col,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    block_m, block_n = place(tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), GROUP)
    # int64: row * stride leaves int32 beyond 2^31 elements
    row = (block_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]  # [BLOCK_M, 1]
    col = (block_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[None, :]  # [1, BLOCK_N]
    sums = masked_sums(a, b, row, col, m, n, k, a_row, a_col, b_row, b_col, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION)
    tl.store(c + row * c_row + col * c_col, sums.to(c.dtype.element_ty), mask=(row < m) & (col < n))


def launch(a, b, c, *, precision, BLOCK_M, BLOCK_N, BLOCK_K_BYTES, GROUP, num_warps, num_stages):
    (m, k), n = a.shape, b.shape[1]
    if BLOCK_M == 0:
        BLOCK_M, BLOCK_N, BLOCK_K_BYTES, num_warps, num_stages = tile_by_shape(a, b, c)
    grid = (triton.cdiv(m, BLOCK_M) * triton.cdiv(n, BLOCK_N),)
    strides = (*a.stride(), *b.stride(), *c.stride())
    matmul_block[grid](
        a, b, c, m, n, k, *strides,
        BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K_BYTES // a.element_size(), GROUP=GROUP, PRECISION=precision,
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
