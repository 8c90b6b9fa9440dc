"""TMA fills a ring of stages while tensor cores empty it; column-major operands are read where they lie.

moves     as triton_tiled, but a tile is one instruction of one thread: no address arithmetic, no masks, no registers in between
limits    TMA asks for rows (or columns) that begin at multiples of 16 bytes; any other operand is loaded through pointers,
          by the same kernel, with masks
precision sums in float32; float32 operands belong to triton_tiled, whose products are no TF32
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

DTYPES = ("float16", "bfloat16")
LAYOUTS = ("contiguous", "rows", "strided")
SPACE = {
    "BLOCK_M": (64, 128, 256),
    "BLOCK_N": (64, 128, 256),
    "BLOCK_K_BYTES": (64, 128, 256),
    "GROUP": (1, 4, 8, 16),
    "PERSISTENT": (False, True),
    "PARTS": (1, 2),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5),
}
LIMITS = {
    "stages_fit_shared_memory": "(BLOCK_M + BLOCK_N) * BLOCK_K_BYTES * num_stages + BLOCK_M * BLOCK_N * itemsize // PARTS + 256 <= 232448",
    "sums_fit_registers": "BLOCK_M * BLOCK_N <= 4096 * num_warps",
    "every_warp_has_a_tile": "BLOCK_M * BLOCK_N >= 1024 * num_warps",
    "no_block_beyond_the_result": "BLOCK_M <= max(64, 2 * m) and BLOCK_N <= max(64, 2 * n)",
}
DEFAULT = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K_BYTES": 128, "GROUP": 8, "PERSISTENT": True, "PARTS": 2, "num_warps": 8, "num_stages": 3}


@triton.jit
def load_tile(source, row, col, rows, cols, row_stride, col_stride, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, HOW: tl.constexpr):
    """A [HEIGHT, WIDTH] tile at (row, col). HOW: "rows" and "columns" are TMA along either axis, "pointers" needs nothing of the matrix."""
    if HOW == "rows":
        return source.load([row, col])
    elif HOW == "columns":
        return source.load([col, row]).T
    else:
        # int64: row * stride leaves int32 beyond 2^31 elements
        r = (row + tl.arange(0, HEIGHT)).to(tl.int64)[:, None]
        c = (col + tl.arange(0, WIDTH)).to(tl.int64)[None, :]
        return tl.load(source + r * row_stride + c * col_stride, mask=(r < rows) & (c < cols), other=0.0)


@triton.jit
def matmul_ring(
    a, b, c, m, n, k, a_row, a_col, b_row, b_col, c_row, c_col,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, PERSISTENT: tl.constexpr, PARTS: tl.constexpr,
    A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, STORED: tl.constexpr,
):  # fmt: skip
    blocks_m, blocks_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    # one program for each tile, or as many as the device runs at once: then the loads of the next tile overlap the store of this one
    last = blocks_m * blocks_n if PERSISTENT else tl.program_id(0) + 1
    for tile in tl.range(tl.program_id(0), last, tl.num_programs(0), flatten=PERSISTENT):
        first = tile // (GROUP * blocks_n) * GROUP
        height = min(blocks_m - first, GROUP)
        row = (first + tile % (GROUP * blocks_n) % height) * BLOCK_M
        col = tile % (GROUP * blocks_n) // height * BLOCK_N
        sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for term in range(0, k, BLOCK_K):
            left = load_tile(a, row, term, m, k, a_row, a_col, BLOCK_M, BLOCK_K, A)  # [BLOCK_M, BLOCK_K]
            right = load_tile(b, term, col, k, n, b_row, b_col, BLOCK_K, BLOCK_N, B)  # [BLOCK_K, BLOCK_N]
            sums = tl.dot(left, right, sums)
        if C == "rows" and PARTS == 2:
            # half the shared memory for the way out leaves room for one more stage on the way in
            low, high = sums.reshape(BLOCK_M, 2, BLOCK_N // 2).permute(0, 2, 1).split()
            c.store([row, col], low.to(STORED))
            c.store([row, col + BLOCK_N // 2], high.to(STORED))
        elif C == "rows":
            c.store([row, col], sums.to(STORED))
        else:
            r = (row + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
            q = (col + tl.arange(0, BLOCK_N)).to(tl.int64)[None, :]
            tl.store(c + r * c_row + q * c_col, sums.to(STORED), mask=(r < m) & (q < n))


def how(matrix):
    """How TMA can walk a matrix: along its rows, its columns, or (sizes or addresses that are no multiples of 16 bytes) not at all."""
    if matrix.numel() and matrix.data_ptr() % 16 == 0:
        for name, inner, outer in (("rows", 1, 0), ("columns", 0, 1)):
            stride = matrix.stride(outer)
            if matrix.stride(inner) == 1 and stride * matrix.element_size() % 16 == 0 and stride >= matrix.shape[inner]:
                return name
    return "pointers"


def described(matrix, way, height, width):
    """What the kernel needs of a matrix to read or write [height, width] tiles of it."""
    if way == "rows":
        return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [height, width])
    if way == "columns":
        return TensorDescriptor(matrix, list(matrix.shape[::-1]), list(matrix.stride()[::-1]), [width, height])
    return matrix


def launch(a, b, c, *, BLOCK_M, BLOCK_N, BLOCK_K_BYTES, GROUP, PERSISTENT, PARTS, num_warps, num_stages):
    (m, k), n = a.shape, b.shape[1]
    block_k = BLOCK_K_BYTES // a.element_size()
    a_way, b_way = how(a), how(b)
    c_way = "rows" if how(c) == "rows" else "pointers"
    tiles = triton.cdiv(m, BLOCK_M) * triton.cdiv(n, BLOCK_N)
    programs = min(tiles, torch.cuda.get_device_properties(c.device).multi_processor_count if c.is_cuda else 132) if PERSISTENT else tiles
    matmul_ring[(programs,)](
        described(a, a_way, BLOCK_M, block_k), described(b, b_way, block_k, BLOCK_N), described(c, c_way, BLOCK_M, BLOCK_N // PARTS),
        m, n, k, *a.stride(), *b.stride(), *c.stride(),
        BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=block_k, GROUP=GROUP, PERSISTENT=PERSISTENT, PARTS=PARTS,
        A=a_way, B=b_way, C=c_way, STORED=getattr(tl, str(c.dtype).removeprefix("torch.")), num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
