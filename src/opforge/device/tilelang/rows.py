"""Rows in TileLang: how kernels that work row by row walk over them, and the sums of those that normalise.

A row that fits one tile stays there; a wider one is read a tile at a time, with one partial sum for each column of the
tile: no reduction inside the loop, and a loop that vectorises.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tilelang.language as T

from opforge.device.tilelang.tools import both, loop, tile, to_float32


def variant(axes: Any, dtype: str) -> dict[str, int | bool]:
    """Rows of a block and columns of a tile, for a width; `whole` says that a row fits one tile."""
    cols = axes["cols"]
    if cols <= 128:
        return {"height": 8, "width": 32 if cols <= 32 else 128, "whole": True}
    return {"height": 1, "width": 1024 if cols <= 1024 else 8192 if cols <= 8192 else 4096, "whole": cols <= 8192}


class RowTiles(NamedTuple):
    """How a kernel walks over rows, and the macros that do it; every tile is float32 [height, width], every statistic
    [height].

    load_row(x, block, row)                     the rows of a block into a tile, zeros past the end
    square_row(row, mean, square)               (row - mean)^2, zeros past the end
    sum_rows(x, block, partial, total)          the sum of each row, a tile at a time
    sum_squares(x, block, partial, mean, total) the sum of (x - mean)^2 of each row, a tile at a time
    average(total)                              total / cols
    inverse_root(total, eps)                    1 / sqrt(total / cols + eps)
    """

    width: int
    whole: bool
    threads: int
    alloc: Any
    each: Any
    load_row: Any
    square_row: Any
    sum_rows: Any
    sum_squares: Any
    average: Any
    inverse_root: Any


def row_tiles(rows: Any, cols: Any, *, dtype: str, target: str, height: int, width: int, whole: bool) -> RowTiles:
    """The RowTiles of a kernel over `rows` x `cols` elements of `dtype`, given its variant."""
    alloc, each = tile(target), loop(target)
    threads = 128 if height * width <= 1024 else 256
    if target == "c" and width > 32:
        # T.reduce_sum adds one after another there: a narrow tile keeps the sum accurate, and still fills the vector
        # unit
        width, whole = 32, False

    def load_row(x: Any, block: Any, row: Any) -> None:
        for i, j in each(height, width):
            row[i, j] = T.if_then_else(
                both(block * height + i < rows, j < cols),
                to_float32(x[block * height + i, j], dtype, target),
                T.float32(0),
            )

    def square_row(row: Any, mean: Any, square: Any) -> None:
        for i, j in each(height, width):
            square[i, j] = T.if_then_else(j < cols, (row[i, j] - mean[i]) * (row[i, j] - mean[i]), T.float32(0))

    def sum_rows(x: Any, block: Any, partial: Any, total: Any) -> None:
        for i, j in each(height, width):
            partial[i, j] = T.float32(0)
        for k in T.serial(T.ceildiv(cols, width)):
            for i, j in each(height, width):
                if both(block * height + i < rows, k * width + j < cols):
                    partial[i, j] = partial[i, j] + to_float32(x[block * height + i, k * width + j], dtype, target)
        T.reduce_sum(partial, total, dim=1, clear=True)

    def sum_squares(x: Any, block: Any, partial: Any, mean: Any, total: Any) -> None:
        for i, j in each(height, width):
            partial[i, j] = T.float32(0)
        for k in T.serial(T.ceildiv(cols, width)):
            for i, j in each(height, width):
                if both(block * height + i < rows, k * width + j < cols):
                    partial[i, j] = partial[i, j] + (
                        to_float32(x[block * height + i, k * width + j], dtype, target) - mean[i]
                    ) * (to_float32(x[block * height + i, k * width + j], dtype, target) - mean[i])
        T.reduce_sum(partial, total, dim=1, clear=True)

    def average(total: Any) -> None:
        for i in each(height):
            total[i] = total[i] / T.Cast("float32", cols)

    def inverse_root(total: Any, eps: Any) -> None:
        for i in each(height):
            total[i] = T.float32(1) / T.sqrt(total[i] / T.Cast("float32", cols) + T.float32(eps))

    bodies = (load_row, square_row, sum_rows, sum_squares, average, inverse_root)
    return RowTiles(width, whole, threads, alloc, each, *(T.macro(body) for body in bodies))
