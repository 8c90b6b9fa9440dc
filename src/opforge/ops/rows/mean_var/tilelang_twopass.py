"""Mean first, then the variance of the deviations from it; rows up to 8192 wide stay in a fragment, wider ones are read
twice.

moves     rows * cols * itemsize bytes up to 8192 columns on a GPU; beyond, and on the C target past 32, x is read twice
          (from cache)
limits    none in width; one block per row at most; the C target runs its rows one after another, on one core
"""

import tilelang.language as T

from opforge.device.tilelang.rows import row_tiles, variant as variant
from opforge.device.tilelang.tools import from_float32, storage

BEST = {"rows_in_a_fragment": "cols <= 8192"}
"""Wider rows are read twice."""


def program(*, dtype, target, height, width, whole):
    rows, cols = T.dynamic("rows"), T.dynamic("cols")
    stored = storage(dtype, target)
    tiles = row_tiles(rows, cols, dtype=dtype, target=target, height=height, width=width, whole=whole)
    alloc, each, width = tiles.alloc, tiles.each, tiles.width

    @T.macro
    def write(block, mean, squares, means, variances):
        for i in each(height):
            if block * height + i < rows:
                means[block * height + i] = from_float32(mean[i], dtype, target)
                variances[block * height + i] = from_float32(squares[i] / T.Cast("float32", cols), dtype, target)

    @T.prim_func
    def moments_blocks(
        x: T.Tensor((rows, cols), stored), means: T.Tensor((rows,), stored), variances: T.Tensor((rows,), stored)
    ):
        with T.Kernel(T.ceildiv(rows, height), threads=tiles.threads) as block:
            partial = alloc((height, width), "float32")
            mean = alloc((height,), "float32")
            squares = alloc((height,), "float32")
            tiles.sum_rows(x, block, partial, mean)
            tiles.average(mean)
            tiles.sum_squares(x, block, partial, mean, squares)
            write(block, mean, squares, means, variances)

    @T.prim_func
    def moments_rows(
        x: T.Tensor((rows, cols), stored), means: T.Tensor((rows,), stored), variances: T.Tensor((rows,), stored)
    ):
        with T.Kernel(T.ceildiv(rows, height), threads=tiles.threads) as block:
            row = alloc((height, width), "float32")
            square = alloc((height, width), "float32")
            mean = alloc((height,), "float32")
            squares = alloc((height,), "float32")
            tiles.load_row(x, block, row)
            T.reduce_sum(row, mean, dim=1, clear=True)
            tiles.average(mean)
            tiles.square_row(row, mean, square)
            T.reduce_sum(square, squares, dim=1, clear=True)
            write(block, mean, squares, means, variances)

    return moments_rows if tiles.whole else moments_blocks
