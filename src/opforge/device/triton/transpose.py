"""Matrices transposed in Triton, a tile of each program: the kernel, its launch, its space and the limits of that."""

from typing import Any

import triton
import triton.language as tl

SPACE = {"SIDE": (32, 64, 128), "num_warps": (4, 8)}
LIMITS = {"fits_registers": "SIDE * SIDE <= 64 * 32 * num_warps"}


@triton.jit
def transpose_tile(x_ptr, y_ptr, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    """One tile of one of many matrices, read along rows and written along columns."""
    # one grid axis, because the others end at 65535
    across = tl.cdiv(cols, COLS)
    tiles = tl.cdiv(rows, ROWS) * across
    # int64: a place leaves int32 beyond 2^31 elements
    start = (tl.program_id(0) // tiles).to(tl.int64) * rows * cols
    tile = tl.program_id(0) % tiles
    row = (tile // across) * ROWS + tl.arange(0, ROWS)
    col = (tile % across) * COLS + tl.arange(0, COLS)
    row_64, col_64 = row.to(tl.int64), col.to(tl.int64)
    inside = (row < rows)[:, None] & (col < cols)[None, :]
    x = tl.load(x_ptr + start + row_64[:, None] * cols + col[None, :], mask=inside)  # [ROWS, COLS]
    turned = (col < cols)[:, None] & (row < rows)[None, :]
    tl.store(y_ptr + start + col_64[:, None] * rows + row[None, :], tl.trans(x), mask=turned)


def transpose_matrices(x: Any, y: Any, side: int, num_warps: int) -> None:
    """y[m, c, r] = x[m, r, c] for contiguous x of shape [matrices, rows, cols], in tiles of about `side` by `side`
    elements.
    """
    matrices, rows, cols = x.shape
    # a short side gives its share of the tile to the other one
    height = min(side, triton.next_power_of_2(rows))
    width = min(side * side // height, max(side, triton.next_power_of_2(cols)), 1024)
    width = min(width, triton.next_power_of_2(cols))
    grid = (matrices * triton.cdiv(rows, height) * triton.cdiv(cols, width),)
    transpose_tile[grid](x, y, rows, cols, ROWS=height, COLS=width, num_warps=num_warps)
