"""The pipelined product of ../matmul; bias and activation are applied to the sums, in float32, before they are stored.

moves     x, w and bias once, y once. A library that applies the activation afterwards writes and reads 2 * rows * n elements more
limits    TMA asks for rows (or columns) that begin at multiples of 16 bytes; any other operand is loaded through pointers
precision float32 operands are multiplied in float32 ("ieee"); the activation is computed on sums that were never rounded
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

LAYOUTS = ("contiguous", "rows", "strided")
SPACE = {
    "BLOCK_M": (16, 32, 64, 128, 256),
    "BLOCK_N": (32, 64, 128, 256),
    "BLOCK_K_BYTES": (64, 128, 256),
    "GROUP": (1, 4, 8, 16),
    "PERSISTENT": (False, True),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5),
}
LIMITS = {
    "stages_fit_shared_memory": "(BLOCK_M + BLOCK_N) * BLOCK_K_BYTES * num_stages + BLOCK_M * BLOCK_N * itemsize + 256 <= 232448",
    "sums_fit_registers": "BLOCK_M * BLOCK_N <= 4096 * num_warps",
    "every_warp_has_a_tile": "BLOCK_M * BLOCK_N >= 256 * num_warps",
    "no_block_beyond_the_result": "BLOCK_M <= max(16, 2 * prod(rows)) and BLOCK_N <= max(32, 2 * n)",
}
DEFAULT = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K_BYTES": 128, "GROUP": 8, "PERSISTENT": False, "num_warps": 8, "num_stages": 4}


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
def activated(z, ACTIVATION: tl.constexpr):
    """The activation of float32 values. exp2 is asked for numbers below 0 alone, or saturates to infinity under a division."""
    if ACTIVATION == "relu":
        return tl.where(z < 0, 0.0, z)  # asked this way round, NaN stays
    elif ACTIVATION == "silu":
        return z / (1 + tl.exp2(-1.4426950409 * z))
    elif ACTIVATION == "gelu":
        # the tail of the normal distribution: Abramowitz and Stegun 7.1.26 with the argument scaled by 1/sqrt(2)
        t = 1 / (1 + 0.2316418882 * tl.abs(z))
        tail = tl.exp2(z * z * -0.7213475204) * t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
        return z * tl.where(z > 0, 1 - tail, tail)
    else:
        return z


@triton.jit
def linear_ring(
    x, w, bias, y, m, n, k, x_row, x_col, w_row, w_col, bias_step, y_row, y_col,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, PERSISTENT: tl.constexpr, ACTIVATION: tl.constexpr,
    X: tl.constexpr, W: tl.constexpr, Y: tl.constexpr, STORED: tl.constexpr,
):  # fmt: skip
    blocks_m, blocks_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    last = blocks_m * blocks_n if PERSISTENT else tl.program_id(0) + 1
    for tile in tl.range(tl.program_id(0), last, tl.num_programs(0), flatten=PERSISTENT):
        first = tile // (GROUP * blocks_n) * GROUP
        height = min(blocks_m - first, GROUP)
        row = (first + tile % (GROUP * blocks_n) % height) * BLOCK_M
        col = tile % (GROUP * blocks_n) // height * BLOCK_N
        sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for term in range(0, k, BLOCK_K):
            left = load_tile(x, row, term, m, k, x_row, x_col, BLOCK_M, BLOCK_K, X)  # [BLOCK_M, BLOCK_K]
            right = load_tile(w, col, term, n, k, w_row, w_col, BLOCK_N, BLOCK_K, W)  # [BLOCK_N, BLOCK_K]
            sums = tl.dot(left, right.T, sums, input_precision="ieee")
        q = col + tl.arange(0, BLOCK_N)
        shift = tl.load(bias + q.to(tl.int64) * bias_step, mask=q < n, other=0.0).to(tl.float32)
        result = activated(sums + shift[None, :], ACTIVATION).to(STORED)
        if Y == "rows":
            y.store([row, col], result)
        else:
            r = (row + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
            tl.store(y + r * y_row + q.to(tl.int64)[None, :] * y_col, result, mask=(r < m) & (q[None, :] < n))


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


def launch(x, w, bias, y, *, activation, BLOCK_M, BLOCK_N, BLOCK_K_BYTES, GROUP, PERSISTENT, num_warps, num_stages):
    (m, k), n = x.shape, w.shape[0]
    block_k = BLOCK_K_BYTES // x.element_size()
    x_way, w_way = how(x), how(w)
    y_way = "rows" if how(y) == "rows" else "pointers"
    tiles = triton.cdiv(m, BLOCK_M) * triton.cdiv(n, BLOCK_N)
    programs = min(tiles, torch.cuda.get_device_properties(y.device).multi_processor_count if y.is_cuda else 132) if PERSISTENT else tiles
    linear_ring[(programs,)](
        described(x, x_way, BLOCK_M, block_k), described(w, w_way, BLOCK_N, block_k), bias, described(y, y_way, BLOCK_M, BLOCK_N),
        m, n, k, *x.stride(), *w.stride(), bias.stride(0), *y.stride(),
        BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=block_k, GROUP=GROUP, PERSISTENT=PERSISTENT, ACTIVATION=activation,
        X=x_way, W=w_way, Y=y_way, STORED=getattr(tl, str(y.dtype).removeprefix("torch.")), num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
