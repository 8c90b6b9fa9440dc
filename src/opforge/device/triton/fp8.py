"""Products of FP8 matrices with scales in Triton: sums of 128 terms on the tensor cores, carried on in float32.

Hopper's tensor cores keep some 14 bits of a sum of FP8 products, so after every 128 terms the sum moves to float32
registers and begins anew. That is where scales of blocks have their place; scales of rows and tensors meet the final
sums.
"""

import triton
import triton.language as tl

from opforge.device.triton.gemm import STORED, described, how, load_tile, multiprocessors, place


@triton.jit
def scaled_ring(
    a, b, scale_a, scale_b, y, m, n, k, a_row, a_col, b_row, b_col, sa_row, sa_block, sb_row, sb_block, y_row, y_col,
    BLOCKWISE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr,
    PERSISTENT: tl.constexpr,
    A: tl.constexpr, B: tl.constexpr, Y: tl.constexpr, STORED: tl.constexpr,
):  # fmt: skip
    """y [m, n] = (scale_a * a [m, k]) @ (scale_b * b [n, k])^T, tile by tile; operands and result in the ways of
    triton_gemm.
    """
    blocks_m, blocks_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    last = blocks_m * blocks_n if PERSISTENT else tl.program_id(0) + 1
    for tile in tl.range(tl.program_id(0), last, tl.num_programs(0), flatten=PERSISTENT):
        block_m, block_n = place(tile, blocks_m, blocks_n, GROUP)
        row_first, col_first = block_m * BLOCK_M, block_n * BLOCK_N
        # int64: row * stride leaves int32 beyond 2^31 elements
        row = (row_first + tl.arange(0, BLOCK_M)).to(tl.int64)
        col = (col_first + tl.arange(0, BLOCK_N)).to(tl.int64)
        sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for block in range(tl.cdiv(k, 128)):
            left = load_tile(a, row_first, block * 128, m, k, a_row, a_col, BLOCK_M, 128, A)  # [BLOCK_M, 128]
            right = load_tile(b, col_first, block * 128, n, k, b_row, b_col, BLOCK_N, 128, B)  # [BLOCK_N, 128]
            if BLOCKWISE:
                # 128 is a multiple of BLOCK_N: all columns here share one scale
                by_block = tl.load(scale_a + row * sa_row + block * sa_block, mask=row < m, other=0.0) * tl.load(
                    scale_b + col_first // 128 * sb_row + block * sb_block
                )
                sums += tl.dot(left, right.T) * by_block[:, None]
            else:
                sums += tl.dot(left, right.T)
        if not BLOCKWISE:
            sums *= tl.load(scale_a + row * sa_row, mask=row < m, other=0.0)[:, None]
            sums *= tl.load(scale_b + col * sb_row, mask=col < n, other=0.0)[None, :]
        if Y == "rows":
            y.store([row_first, col_first], sums.to(STORED))
        else:
            tl.store(
                y + row[:, None] * y_row + col[None, :] * y_col,
                sums.to(STORED),
                mask=(row < m)[:, None] & (col < n)[None, :],
            )


def scale_steps(scale):
    """Strides of a scale by row and by block; one that serves all rows does not move."""
    return scale.stride(0) if scale.shape[0] > 1 else 0, scale.stride(1)


def launch_scaled(
    a, b, scale_a, scale_b, y, *, blockwise, tma, BLOCK_M, BLOCK_N, GROUP, PERSISTENT, num_warps, num_stages
):
    """y by `scaled_ring`: an operand whose rows TMA can address is read by TMA if `tma`, any other through pointers
    behind masks.
    """
    (m, k), n = a.shape, b.shape[0]
    a_way, b_way, y_way = ("rows" if tma and how(matrix) == "rows" else "pointers" for matrix in (a, b, y))
    tiles = triton.cdiv(m, BLOCK_M) * triton.cdiv(n, BLOCK_N)
    programs = min(tiles, multiprocessors(y)) if PERSISTENT else tiles
    scaled_ring[(programs,)](
        described(a, a_way, BLOCK_M, 128), described(b, b_way, BLOCK_N, 128), scale_a, scale_b, described(y, y_way,
        BLOCK_M, BLOCK_N),
        m, n, k, *a.stride(), *b.stride(), *scale_steps(scale_a), *scale_steps(scale_b), *y.stride(),
        BLOCKWISE=blockwise, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, GROUP=GROUP, PERSISTENT=PERSISTENT,
        A=a_way, B=b_way, Y=y_way, STORED=STORED[y.dtype], num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
