"""Tiles of rows and columns in Triton: what kernels that broadcast along an axis have in common, their space and its
limits.
"""

from typing import Any

import triton
import triton.language as tl

SPACE = {"TILE": (1024, 2048, 4096, 8192), "num_warps": (4, 8)}
LIMITS = {
    "every_thread_has_a_vector": "TILE * itemsize >= 16 * 32 * num_warps",
    "fits_registers": "TILE <= 32 * 32 * num_warps",
}


@triton.jit
def tile_of(rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    """The rows ([ROWS]) and columns ([COLS]) of this program's tile, and which of its elements ([ROWS, COLS]) exist."""
    # one grid axis, because the others end at 65535
    across = tl.cdiv(cols, COLS)
    tile = tl.program_id(0)
    # int64: row * cols leaves int32 beyond 2^31 elements
    row = (tile // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = (tile % across) * COLS + tl.arange(0, COLS)
    return row, col, (row < rows)[:, None] & (col < cols)[None, :]


def tiles_over(rows: int, cols: int, elements: int) -> tuple[tuple[int], dict[str, Any]]:
    """Grid and sides of tiles of `elements` elements over a matrix: as wide as its rows, and as tall as that leaves
    room for.
    """
    width = min(elements, triton.next_power_of_2(cols))
    height = elements // width
    return (triton.cdiv(rows, height) * triton.cdiv(cols, width),), {"ROWS": height, "COLS": width}
