"""Any size and stride: FP8 products of 128 terms on the tensor cores, then their sum is carried on in float32.

moves     a is read cdiv(n, BLOCK_N) times and b cdiv(m, BLOCK_M) times, mostly from the second-level cache
idea      Hopper's tensor cores keep some 14 bits of a sum of FP8 products; after every 128 terms the sum
          moves to float32 registers and begins anew; the scales are applied once, to the final sums
limits    loads through pointers, behind masks; rows of 16 bytes belong to triton_gluon
"""

import triton
import triton.language as tl

LAYOUTS = ("contiguous", "rows", "strided")
SPACE = {"BLOCK_M": (16, 32, 64, 128), "BLOCK_N": (32, 64, 128), "GROUP": (1, 8), "num_warps": (4, 8), "num_stages": (2, 3, 4)}
LIMITS = {
    "sums_fit_registers": "BLOCK_M * BLOCK_N <= 2048 * num_warps",
    "every_warp_has_a_tile": "BLOCK_M * BLOCK_N >= 256 * num_warps",
    "no_block_beyond_the_result": "BLOCK_M <= max(16, 2 * m) and BLOCK_N <= max(32, 2 * n)",
}
DEFAULT = {"BLOCK_M": 128, "BLOCK_N": 128, "GROUP": 8, "num_warps": 8, "num_stages": 3}


@triton.jit
def scaled_block(
    a, b, scale_a, scale_b, y, m, n, k, a_row, a_col, b_row, b_col, sa_step, sb_step, y_row, y_col,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    blocks_m, blocks_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    first = program // (GROUP * blocks_n) * GROUP
    height = min(blocks_m - first, GROUP)
    # int64: row * stride leaves int32 beyond 2^31 elements
    row = ((first + program % (GROUP * blocks_n) % height) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    col = (program % (GROUP * blocks_n) // height * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    row_inside, col_inside = row < m, col < n
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for block in range(tl.cdiv(k, 128)):
        term = block * 128 + tl.arange(0, 128).to(tl.int64)
        left = tl.load(a + row[:, None] * a_row + term[None, :] * a_col, mask=row_inside[:, None] & (term[None, :] < k), other=0.0)
        right = tl.load(b + term[:, None] * b_col + col[None, :] * b_row, mask=(term[:, None] < k) & col_inside[None, :], other=0.0)
        sums += tl.dot(left, right)
    by_row = tl.load(scale_a + row * sa_step, mask=row_inside, other=0.0)
    by_col = tl.load(scale_b + col * sb_step, mask=col_inside, other=0.0)
    sums *= by_row[:, None]
    sums *= by_col[None, :]
    tl.store(y + row[:, None] * y_row + col[None, :] * y_col, sums.to(tl.bfloat16), mask=row_inside[:, None] & col_inside[None, :])


def launch(a, b, scale_a, scale_b, y, *, BLOCK_M, BLOCK_N, GROUP, num_warps, num_stages):
    (m, k), n = a.shape, b.shape[0]
    grid = (triton.cdiv(m, BLOCK_M) * triton.cdiv(n, BLOCK_N),)
    scaled_block[grid](
        a, b, scale_a, scale_b, y, m, n, k, *a.stride(), *b.stride(), scale_a.stride(0), scale_b.stride(0), *y.stride(),
        BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, GROUP=GROUP, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
