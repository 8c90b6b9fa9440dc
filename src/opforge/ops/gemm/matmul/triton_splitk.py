"""Few rows and a wide matrix: k is split among programs, and the last to finish a tile adds the parts up, always in the
same order.

moves     b once, a once for each block of columns, SPLIT * m * n sums in float32 through the second-level cache
idea      with m <= 128 there are too few tiles for the device, and what limits is how fast b comes in: SPLIT times as
          many programs ask for it. With SWAP the product is taken as c^T = b^T a^T, because wgmma's first side is never
          shorter than 64 and a is
config    zeros leave everything to `by_shape`, which has what was fastest; with EARLY blocks start while the kernel
          before ends
precision parts are added in float32 in the order of k, whoever is last: the same bits at every call
limits    m <= 256
"""

import torch
import triton
import triton.language as tl

from opforge.device.triton.gemm import counters_for, described, early, how, load_tile, multiprocessors

SUPPORTS = {"few_rows": "m <= 256"}
LAYOUTS = ("contiguous", "rows", "strided")
SPACE = {
    "BLOCK_M": (0, 16, 32, 64, 128),
    "BLOCK_N": (0, 32, 64, 128, 256),
    "BLOCK_K_BYTES": (0, 128, 256, 512),
    "SPLIT": (0, 1, 2, 3, 4, 6, 8, 16),
    "SWAP": (False, True),
    "num_warps": (4, 8),
    "num_stages": (0, 3, 4, 5, 6, 8, 10),
    "EARLY": (False, True),
}
LIMITS = {
    "all_or_nothing_by_shape": "(min(BLOCK_M, BLOCK_N, BLOCK_K_BYTES, SPLIT, num_stages) > 0) == (max(BLOCK_M, "
    "BLOCK_N, BLOCK_K_BYTES, SPLIT, num_stages) > 0)",
    "nothing_beside_the_shape": "BLOCK_M > 0 or not SWAP and num_warps == 4",
    "stages_fit_shared_memory": "(BLOCK_M + BLOCK_N) * BLOCK_K_BYTES * num_stages <= shared_bytes_per_block",
    "sums_fit_registers": "BLOCK_M * BLOCK_N <= 4096 * num_warps",
    "every_warp_has_a_tile": "BLOCK_M == 0 or BLOCK_M * BLOCK_N >= 256 * num_warps",
    "no_block_beyond_the_result": "BLOCK_M <= max(16, 2 * m) and BLOCK_N <= max(64, 2 * n)",
    "short_sides_are_swapped": "not SWAP or BLOCK_M <= 64",
    "every_part_has_a_tile": "SPLIT <= 1 or SPLIT * BLOCK_K_BYTES <= k * itemsize",
}
DEFAULT = {
    "BLOCK_M": 0,
    "BLOCK_N": 0,
    "BLOCK_K_BYTES": 0,
    "SPLIT": 0,
    "SWAP": False,
    "num_warps": 4,
    "num_stages": 0,
    "EARLY": True,
}


def by_shape(m, n, k, itemsize, programs):
    """BLOCK_M, BLOCK_N, BLOCK_K_BYTES, SPLIT, SWAP, num_warps and num_stages for a product of m x k and k x n on a
    device of so many multiprocessors.

    Measured in bfloat16 on one H200, CUDA graphs interleaved; what was not measured has tiles of 64 x 64 in two parts.
    """
    narrow = triton.cdiv(n, 64)  # tiles of 64 columns
    if m <= 16:
        # parts until half of the device is filled: 16 x 4096 x 4096 takes 11.0 us in one, 11.6 in two; 16 x 1024 x 8192
        # 8.1 in four, 8.2 in eight
        split = 1
        while split < 8 and 4 * split * narrow <= programs and 2 * split * 256 <= k * itemsize:
            split *= 2
        return 16, 64, 256, split, True, 4, 6
    if itemsize == 2 and m <= 128:
        if programs < 2 * narrow <= 2 * programs:
            # one part, one program on each multiprocessor: 64 x 8192 x 8192 takes 36.2 us, 39.2 in two; 128 x 8192 x
            # 28672 125 us, 149 before
            return (64, 64, 256, 1, False, 4, 6) if m <= 64 else (128, 64, 128, 1, False, 4, 8)
        if m > 64 and triton.cdiv(n, 128) >= programs:
            # 128 x 28672 x 8192: 123 us, 191 with tiles of 64 x 64
            return 128, 128, 128, 1, False, 8, 6
    return 64, 64, 128, 2, False, 4, 5


@triton.jit
def matmul_parts(
    a, b, c, parts, counters, m, n, k, a_row, a_col, b_row, b_col, c_row, c_col,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr, STEPS: tl.constexpr,
    SWAP: tl.constexpr,
    A: tl.constexpr, B: tl.constexpr, PRECISION: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    blocks_m = tl.cdiv(m, BLOCK_M)
    tile, part = tl.program_id(0), tl.program_id(1)
    row, col = tile % blocks_m * BLOCK_M, tile // blocks_m * BLOCK_N
    begin = part * STEPS * BLOCK_K
    end = min(k, begin + STEPS * BLOCK_K)
    HEIGHT: tl.constexpr = BLOCK_N if SWAP else BLOCK_M
    WIDTH: tl.constexpr = BLOCK_M if SWAP else BLOCK_N
    sums = tl.zeros((HEIGHT, WIDTH), dtype=tl.float32)
    for term in range(begin, end, BLOCK_K):
        left = load_tile(a, row, term, m, k, a_row, a_col, BLOCK_M, BLOCK_K, A)  # [BLOCK_M, BLOCK_K]
        right = load_tile(b, term, col, k, n, b_row, b_col, BLOCK_K, BLOCK_N, B)  # [BLOCK_K, BLOCK_N]
        if SWAP:
            sums = tl.dot(right.T, left.T, sums, input_precision=PRECISION)
        else:
            sums = tl.dot(left, right, sums, input_precision=PRECISION)
    r, q = row + tl.arange(0, BLOCK_M), col + tl.arange(0, BLOCK_N)
    if SWAP:
        at = c + r.to(tl.int64)[None, :] * c_row + q.to(tl.int64)[:, None] * c_col
        inside = (r[None, :] < m) & (q[:, None] < n)
    else:
        at = c + r.to(tl.int64)[:, None] * c_row + q.to(tl.int64)[None, :] * c_col
        inside = (r[:, None] < m) & (q[None, :] < n)
    if SPLIT == 1:
        tl.store(at, sums.to(c.dtype.element_ty), mask=inside)
    else:
        place = tl.arange(0, HEIGHT)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
        tl.store(parts + (tile * SPLIT + part).to(tl.int64) * BLOCK_M * BLOCK_N + place, sums)
        # every thread's sums must be written before the count says so
        tl.debug_barrier()
        if tl.atomic_add(counters + tile, 1, sem="acq_rel") == SPLIT - 1:
            total = tl.zeros((HEIGHT, WIDTH), dtype=tl.float32)
            for other in range(SPLIT):
                total += tl.load(
                    parts + (tile * SPLIT + other).to(tl.int64) * BLOCK_M * BLOCK_N + place, cache_modifier=".cg"
                )
            tl.store(at, total.to(c.dtype.element_ty), mask=inside)
            # ready for the next call
            tl.store(counters + tile, 0)


def launch(a, b, c, *, precision, BLOCK_M, BLOCK_N, BLOCK_K_BYTES, SPLIT, SWAP, num_warps, num_stages, EARLY=False):
    (m, k), n = a.shape, b.shape[1]
    if BLOCK_M == 0:
        BLOCK_M, BLOCK_N, BLOCK_K_BYTES, SPLIT, SWAP, num_warps, num_stages = by_shape(
            m, n, k, a.element_size(), multiprocessors(c)
        )
    block_k = BLOCK_K_BYTES // a.element_size()
    tiles = triton.cdiv(m, BLOCK_M) * triton.cdiv(n, BLOCK_N)
    steps = triton.cdiv(triton.cdiv(k, block_k), SPLIT)
    parts = torch.empty(SPLIT * tiles * BLOCK_M * BLOCK_N if SPLIT > 1 else 0, dtype=torch.float32, device=c.device)
    a_way, b_way = how(a), how(b)
    matmul_parts[(tiles, SPLIT)](
        described(a, a_way, BLOCK_M, block_k), described(b, b_way, block_k, BLOCK_N), c, parts, counters_for(c.device,
        tiles),
        m, n, k, *a.stride(), *b.stride(), *c.stride(),
        BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=block_k, SPLIT=SPLIT, STEPS=steps, SWAP=SWAP, A=a_way, B=b_way,
        PRECISION=precision,
        num_warps=num_warps, num_stages=num_stages, **early(EARLY, c),
    )  # fmt: skip
