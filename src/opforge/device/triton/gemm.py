"""Products of matrices in Triton: what kernels for matmul, linear and batched_matmul have in common.

A matrix reaches a kernel in one of three ways (`how`): by TMA along its rows, by TMA along its columns, or, where TMA
cannot address it, as a pointer with two strides. Kernels take the way as a constexpr, so that each is compiled for
what it
is given. An epilogue is a `@triton.jit` function `epilogue(sums, row, col, extras, VARIANT)`: float32 sums [BLOCK_M,
BLOCK_N] of the tile at (row, col), a tuple of tensors and numbers, and a constexpr that says which of its variants, to
float32 results of the same shape.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from opforge.device.tile_choice import least_work

MULTIPROCESSORS = 132
"""Of an H100 or H200: what a launch is laid out for where it is compiled and no GPU is asked."""
SHARED_BYTES = 232448
"""Likewise: what a block may have of shared memory."""


@triton.jit
def place(tile, blocks_m, blocks_n, GROUP: tl.constexpr):
    """The row and column of a tile, in tiles. GROUP rows of them are visited column by column: what runs at one time
    reads few
    distinct panels of both operands."""
    first = tile // (GROUP * blocks_n) * GROUP
    height = min(blocks_m - first, GROUP)
    return first + tile % (GROUP * blocks_n) % height, tile % (GROUP * blocks_n) // height


@triton.jit
def load_tile(
    source, row, col, rows, cols, row_stride, col_stride, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, HOW: tl.constexpr
):
    """A [HEIGHT, WIDTH] tile at (row, col). HOW: "rows" and "columns" are TMA along either axis, "pointers" needs
    nothing of the matrix.
    """
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
def masked_sums(
    a,
    b,
    row,
    col,
    m,
    n,
    k,
    a_row,
    a_col,
    b_row,
    b_col,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr = "ieee",
):
    """The float32 sums of one tile, k walked in steps through pointers behind masks: any size, any stride.

    row [BLOCK_M, 1] and col [1, BLOCK_N] are int64: row * stride leaves int32 beyond 2^31 elements. PRECISION is that
    of products of float32 operands: "ieee" or "tf32".
    """
    term = tl.arange(0, BLOCK_K).to(tl.int64)  # [BLOCK_K]
    a_at = a + row * a_row + term[None, :] * a_col  # [BLOCK_M, BLOCK_K]
    b_at = b + term[:, None] * b_row + col * b_col  # [BLOCK_K, BLOCK_N]
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, k, BLOCK_K):
        left = k - start
        # both operands are zero beyond k: zero times whatever lies there could be NaN
        lhs = tl.load(a_at, mask=(row < m) & (term[None, :] < left), other=0.0)
        rhs = tl.load(b_at, mask=(term[:, None] < left) & (col < n), other=0.0)
        sums = tl.dot(lhs, rhs, sums, input_precision=PRECISION)
        a_at += BLOCK_K * a_col
        b_at += BLOCK_K * b_row
    return sums


@triton.jit
def unchanged(sums, row, col, extras, VARIANT: tl.constexpr):
    """The epilogue of a bare product."""
    return sums


@triton.jit
def product_ring(
    a, b, c, extras, m, n, k, a_row, a_col, b_row, b_col, c_row, c_col,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, PERSISTENT: tl.constexpr,
    PARTS: tl.constexpr,
    A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, STORED: tl.constexpr, EPILOGUE: tl.constexpr,
    VARIANT: tl.constexpr,
    PRECISION: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """c = epilogue(a @ b), tile by tile; the compiler pipelines the loads of num_stages steps."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    blocks_m, blocks_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    # one program for each tile, or as many as the device runs at once: then the loads of the next tile overlap the
    # store of this one
    last = blocks_m * blocks_n if PERSISTENT else tl.program_id(0) + 1
    for tile in tl.range(tl.program_id(0), last, tl.num_programs(0), flatten=PERSISTENT):
        block_m, block_n = place(tile, blocks_m, blocks_n, GROUP)
        row, col = block_m * BLOCK_M, block_n * BLOCK_N
        sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for term in range(0, k, BLOCK_K):
            left = load_tile(a, row, term, m, k, a_row, a_col, BLOCK_M, BLOCK_K, A)  # [BLOCK_M, BLOCK_K]
            right = load_tile(b, term, col, k, n, b_row, b_col, BLOCK_K, BLOCK_N, B)  # [BLOCK_K, BLOCK_N]
            sums = tl.dot(left, right, sums, input_precision=PRECISION)
        result = EPILOGUE(sums, row, col, extras, VARIANT)
        if C == "rows" and PARTS == 2:
            # half the shared memory for the way out leaves room for one more stage on the way in
            low, high = result.reshape(BLOCK_M, 2, BLOCK_N // 2).permute(0, 2, 1).split()
            c.store([row, col], low.to(STORED))
            c.store([row, col + BLOCK_N // 2], high.to(STORED))
        elif C == "rows":
            c.store([row, col], result.to(STORED))
        else:
            r = (row + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
            q = (col + tl.arange(0, BLOCK_N)).to(tl.int64)[None, :]
            tl.store(c + r * c_row + q * c_col, result.to(STORED), mask=(r < m) & (q < n))


def how(matrix):
    """How TMA can address a matrix: along its rows, its columns, or (sizes or addresses that are no multiples of 16
    bytes) not at all.
    """
    if matrix.numel() and matrix.data_ptr() % 16 == 0:
        for name, inner, outer in (("rows", 1, 0), ("columns", 0, 1)):
            stride = matrix.stride(outer)
            if matrix.stride(inner) == 1 and stride * matrix.element_size() % 16 == 0 and stride >= matrix.shape[inner]:
                return name
    return "pointers"


def described(matrix, way, height, width):
    """What a kernel needs of a matrix to read or write [height, width] tiles of it: a TMA descriptor, or the matrix."""
    if way == "rows":
        return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [height, width])
    if way == "columns":
        return TensorDescriptor(matrix, list(matrix.shape[::-1]), list(matrix.stride()[::-1]), [width, height])
    return matrix


def multiprocessors(matrix):
    """How many multiprocessors the device of a matrix has."""
    return torch.cuda.get_device_properties(matrix.device).multi_processor_count if matrix.is_cuda else MULTIPROCESSORS


def room(matrix):
    """Bytes of shared memory that a block may have on the device of a matrix."""
    return (
        torch.cuda.get_device_properties(matrix.device).shared_memory_per_block_optin
        if matrix.is_cuda
        else SHARED_BYTES
    )


def early(wanted, matrix):
    """Arguments of a launch whose blocks may start while the kernel before runs, and wait for it inside: Hopper and
    later.
    """
    able = (
        wanted
        and matrix.is_cuda
        and torch.version.hip is None
        and torch.cuda.get_device_capability(matrix.device) >= (9, 0)
    )
    return {"EARLY": True, "launch_pdl": True} if able else {"EARLY": False}


def lined_up(matrix):
    """Whether Triton may read a matrix (or a batch) through pointers 16 bytes at a time. It is told of sizes and
    strides that are multiples of 16 elements.
    """
    (rows, cols), (down, along) = matrix.shape[-2:], matrix.stride()[-2:]
    size, other = (cols, down) if along == 1 else (rows, along)
    return (
        matrix.data_ptr() % 16 == 0
        and 1 in (down, along)
        and size % 16 == 0
        and all(stride % 16 == 0 for stride in (other, *matrix.stride()[:-2]))
    )


TILES = {(128, 256): (8, 3), (128, 128): (8, 3), (128, 64): (4, 4), (64, 64): (4, 4)}
"""Warps and stages of a loop over steps of 128 bytes that are loaded through pointers."""


def tile_by_shape(a, b, c):
    """BLOCK_M, BLOCK_N, BLOCK_K_BYTES, num_warps and num_stages for c = a @ b (or a batch of products) by
    `masked_sums`.

    Measured with 16-bit operands on one H200. float32 keeps 128 x 128, and so do short products, which memory limits.
    Elements that are loaded one by one leave few registers: large tiles alone, though they spill a little, and in a
    batch 128 x 128.
    """
    (*batch, m, k), n = a.shape, b.shape[-1]
    tiles = [(128, 128)]
    if a.element_size() == 2 and k > 128:
        if lined_up(a) and lined_up(b) and lined_up(c):
            tiles = list(TILES)
        elif not batch:
            tiles = [(128, 256), (128, 128)]
    fitting = [(rows, cols) for rows, cols in tiles if (rows + cols) * 128 * TILES[rows, cols][1] <= room(c)]
    tile = least_work(m, n, multiprocessors(c), fitting or [(128, 128)], math.prod(batch))
    return *tile, 128, *TILES[tile]


RING = {(128, 256): (8, 3), (128, 128): (8, 4), (128, 64): (4, 6), (64, 128): (4, 6), (64, 64): (4, 6)}
"""Warps and stages of a pipeline that TMA fills with tiles of this size, in steps of 128 bytes."""


def ring_by_shape(m, n, itemsize, precision, walked, bare, programs, shared):
    """BLOCK_M, BLOCK_N, BLOCK_K_BYTES, PERSISTENT, PARTS, num_warps and num_stages for a product of m x n.

    walked   whether TMA can address all three matrices: addresses and masks leave few registers
    bare     whether the product has no epilogue, which would need the rest of them
    programs how many multiprocessors the device has, and `shared` how many bytes a block may have there

    Measured with 16-bit operands on one H200. float32 has tiles of its own: it runs through plain multiply-adds, or in
    TF32.
    """
    if itemsize > 2:
        return (128, 256, 128, True, 2, 8, 3) if precision == "tf32" and walked else (128, 128, 128, False, 1, 8, 4)
    tiles = list(RING) if walked else [(128, 256), (128, 128)] if bare else [(128, 128)]
    fitting = [
        (rows, cols) for rows, cols in tiles if (rows + cols) * 128 * RING[rows, cols][1] + 2 * rows * cols <= shared
    ]
    tile = least_work(m, n, programs, fitting or [(64, 64)])
    persistent = triton.cdiv(m, tile[0]) * triton.cdiv(n, tile[1]) > programs and (walked or tile[1] == 256)
    return *tile, 128, persistent, 2 if tile[1] == 256 else 1, *RING[tile]


def launch_ring(
    a, b, c, epilogue=unchanged, extras=(), variant=None, precision="ieee", *,
    BLOCK_M, BLOCK_N, BLOCK_K_BYTES, GROUP, PERSISTENT, PARTS, num_warps, num_stages, EARLY=False,
):  # fmt: skip
    """c [m, n] = epilogue(a [m, k] @ b [k, n]) by `product_ring`, each operand read in the way that it allows; float32
    operands in `precision`.

    Zeros for the tile leave it to `ring_by_shape`.
    """
    (m, k), n = a.shape, b.shape[1]
    # what becomes operands of plain multiply-adds comes by pointers: out of TMA's boxes it is read with conflicts, and
    # spilled
    a_way, b_way = ("pointers", "pointers") if a.element_size() > 2 and precision == "ieee" else (how(a), how(b))
    c_way = "rows" if how(c) == "rows" else "pointers"
    if BLOCK_M == 0:
        walked = "pointers" not in (a_way, b_way, c_way)
        bare = epilogue is unchanged
        BLOCK_M, BLOCK_N, BLOCK_K_BYTES, PERSISTENT, PARTS, num_warps, num_stages = ring_by_shape(
            m, n, a.element_size(), precision, walked, bare, multiprocessors(c), room(c)
        )
    block_k = BLOCK_K_BYTES // a.element_size()
    tiles = triton.cdiv(m, BLOCK_M) * triton.cdiv(n, BLOCK_N)
    programs = min(tiles, multiprocessors(c)) if PERSISTENT else tiles
    product_ring[(programs,)](
        described(a, a_way, BLOCK_M, block_k), described(b, b_way, block_k, BLOCK_N), described(c, c_way, BLOCK_M,
        BLOCK_N // PARTS), extras,
        m, n, k, *a.stride(), *b.stride(), *c.stride(),
        BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=block_k, GROUP=GROUP, PERSISTENT=PERSISTENT, PARTS=PARTS,
        A=a_way, B=b_way, C=c_way, STORED=STORED[c.dtype], EPILOGUE=epilogue, VARIANT=variant, PRECISION=precision,
        num_warps=num_warps, num_stages=num_stages, **early(EARLY, c),
    )  # fmt: skip


STORED = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float8_e4m3fn: tl.float8e4nv,
    torch.float8_e5m2: tl.float8e5,
}
"""Triton's name of each dtype that results are stored in."""

_COUNTERS: dict[Any, Any] = {}


def counters_for(device, count):
    """int32 zeros [at least count] that a kernel leaves as zeros. One set for each stream, whose kernels run one after
    another.
    """
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    found = _COUNTERS.get((device, stream))
    if found is None or found.numel() < count:
        found = _COUNTERS[device, stream] = torch.zeros(max(count, 4096), dtype=torch.int32, device=device)
    return found
