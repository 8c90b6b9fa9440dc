"""The maximum of rows and the sums of their exponentials in TileLang: what softmax and log_softmax have in common.

A row that fits one tile stays there; a wider one is read a tile at a time, with a running maximum and a rescaled sum.
source    Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867, 2018
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tilelang.language as T

from opforge.device.tilelang.rows import RowTiles
from opforge.device.tilelang.tools import both, to_float32

# finite, so that the difference of two of them is 0 and not NaN; columns past the end are set to 0 after exp
LOWEST = -3.4028234663852886e38


class SoftmaxTiles(NamedTuple):
    """Macros over the rows of a block; every tile is float32 [height, width], every statistic [height].

    row_powers(x, block, row, power, top, total)     `row` holds the row, `power` exp(row - top); both may be one tile
    peak_and_sum(x, block, part, part_top, part_sum, top, higher, total)    a tile at a time
    """

    row_powers: Any
    peak_and_sum: Any


def softmax_tiles(rows: Any, cols: Any, tiles: RowTiles, *, dtype: str, target: str, height: int) -> SoftmaxTiles:
    """The SoftmaxTiles of a kernel over `rows` x `cols` elements of `dtype`, which walks over them as `tiles` says."""
    each, width = tiles.each, tiles.width

    def row_powers(x: Any, block: Any, row: Any, power: Any, top: Any, total: Any) -> None:
        for i, j in each(height, width):
            row[i, j] = T.if_then_else(
                both(block * height + i < rows, j < cols),
                to_float32(x[block * height + i, j], dtype, target),
                T.float32(LOWEST),
            )
        T.reduce_max(row, top, dim=1, clear=True)
        for i, j in each(height, width):
            power[i, j] = T.if_then_else(j < cols, T.exp(row[i, j] - top[i]), T.float32(0))
        T.reduce_sum(power, total, dim=1, clear=True)

    def peak_and_sum(
        x: Any, block: Any, part: Any, part_top: Any, part_sum: Any, top: Any, higher: Any, total: Any
    ) -> None:
        for i in each(height):
            top[i] = T.float32(LOWEST)
            total[i] = T.float32(0)
        for k in T.serial(T.ceildiv(cols, width)):
            for i, j in each(height, width):
                part[i, j] = T.if_then_else(
                    both(block * height + i < rows, k * width + j < cols),
                    to_float32(x[block * height + i, k * width + j], dtype, target),
                    T.float32(LOWEST),
                )
            T.reduce_max(part, part_top, dim=1, clear=True)
            for i in each(height):
                higher[i] = T.max(top[i], part_top[i])
            for i, j in each(height, width):
                part[i, j] = T.if_then_else(k * width + j < cols, T.exp(part[i, j] - higher[i]), T.float32(0))
            T.reduce_sum(part, part_sum, dim=1, clear=True)
            for i in each(height):
                total[i] = total[i] * T.exp(top[i] - higher[i]) + part_sum[i]
                top[i] = higher[i]

    return SoftmaxTiles(*(T.macro(body) for body in (row_powers, peak_and_sum)))
