"""Tiles and whole rows in Triton whose grid, rows and warps are chosen: what `opforge optimize` changes in generated
kernels.
"""

from typing import Any

import triton
import triton.language as tl

from opforge.device.triton.norms import normalised_rows
from opforge.device.triton.tiles import tiles_over


@triton.jit
def tile_in_grid(rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr, GRID: tl.constexpr):
    """The rows ([ROWS]) and columns ([COLS]) of this program's tile, and which of its elements ([ROWS, COLS]) exist.

    GRID 1: programs are counted along one axis, the tiles of a row of tiles after another. 2: an axis for each side,
    which spares the division; 3: one axis, the tiles of a column after another, so that what is broadcast over rows is
    read by neighbours.
    """
    if GRID == 1:
        across = tl.cdiv(cols, COLS)
        down, along = tl.program_id(0) // across, tl.program_id(0) % across
    elif GRID == 2:
        down, along = tl.program_id(0), tl.program_id(1)
    else:
        height = tl.cdiv(rows, ROWS)
        down, along = tl.program_id(0) % height, tl.program_id(0) // height
    # int64: row * cols leaves int32 beyond 2^31 elements
    row = down.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = along * COLS + tl.arange(0, COLS)
    return row, col, (row < rows)[:, None] & (col < cols)[None, :]


def tiles_in_grid(rows: int, cols: int, elements: int, grid: int) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Grid and sides of tiles of `elements` elements over a matrix, as `tile_in_grid` counts them."""
    (programs,), sides = tiles_over(rows, cols, elements)
    if grid == 2:
        return (triton.cdiv(rows, sides["ROWS"]), triton.cdiv(cols, sides["COLS"])), {**sides, "GRID": grid}
    return (programs,), {**sides, "GRID": grid}


def chosen_rows(rows: int, cols: int, several: int, warps: int) -> tuple[tuple[int], dict[str, Any]]:
    """Grid and config of programs that take `several` whole rows with so many warps; 0: as the shape says."""
    _, config = normalised_rows(rows, cols)
    config["ROWS"] = several or config["ROWS"]
    config["num_warps"] = warps or config["num_warps"]
    return (triton.cdiv(rows, config["ROWS"]),), config
