"""A row stays in a fragment, the sum in place of x; on the C target, past 32 columns, the sum is written and read again
from cache.

moves     4 * rows * cols * itemsize bytes: the least possible
limits    rows up to 8192 wide: threads of a GPU that read each other's part of a sum would need a barrier; the C target
          runs its rows one after another, on one core
"""

import tilelang.language as T

from opforge.device.tilelang.rows import row_tiles, variant as variant
from opforge.device.tilelang.tools import both, from_float32, storage, to_float32

SUPPORTS = {"row_fits_a_fragment": "cols <= 8192"}


def program(*, dtype, target, eps, height, width, whole):
    rows, cols = T.dynamic("rows"), T.dynamic("cols")
    stored = storage(dtype, target)
    tiles = row_tiles(rows, cols, dtype=dtype, target=target, height=height, width=width, whole=whole)
    alloc, each, width = tiles.alloc, tiles.each, tiles.width

    def normalised(value, scale, weight):
        return from_float32(value * scale * to_float32(weight, dtype, target), dtype, target)

    @T.prim_func
    def add_rmsnorm_blocks(
        x: T.Tensor((rows, cols), stored),
        residual: T.Tensor((rows, cols), stored),
        weight: T.Tensor((cols,), stored),
        y: T.Tensor((rows, cols), stored),
        total: T.Tensor((rows, cols), stored),
    ):
        with T.Kernel(T.ceildiv(rows, height), threads=tiles.threads) as block:
            partial = alloc((height, width), "float32")
            zero = alloc((height,), "float32")
            scale = alloc((height,), "float32")
            for i in each(height):
                zero[i] = T.float32(0)
            for k in T.serial(T.ceildiv(cols, width)):
                for i, j in each(height, width):
                    if both(block * height + i < rows, k * width + j < cols):
                        total[block * height + i, k * width + j] = from_float32(
                            to_float32(x[block * height + i, k * width + j], dtype, target)
                            + to_float32(residual[block * height + i, k * width + j], dtype, target),
                            dtype,
                            target,
                        )
            tiles.sum_squares(total, block, partial, zero, scale)
            tiles.inverse_root(scale, eps)
            for k in T.serial(T.ceildiv(cols, width)):
                for i, j in each(height, width):
                    if both(block * height + i < rows, k * width + j < cols):
                        y[block * height + i, k * width + j] = normalised(
                            to_float32(total[block * height + i, k * width + j], dtype, target),
                            scale[i],
                            weight[k * width + j],
                        )

    @T.prim_func
    def add_rmsnorm_rows(
        x: T.Tensor((rows, cols), stored),
        residual: T.Tensor((rows, cols), stored),
        weight: T.Tensor((cols,), stored),
        y: T.Tensor((rows, cols), stored),
        total: T.Tensor((rows, cols), stored),
    ):
        with T.Kernel(T.ceildiv(rows, height), threads=tiles.threads) as block:
            row = alloc((height, width), "float32")
            square = alloc((height, width), "float32")
            scale = alloc((height,), "float32")
            tiles.load_row(x, block, row)
            tiles.load_row(residual, block, square)
            for i, j in each(height, width):
                row[i, j] = row[i, j] + square[i, j]
            for i, j in each(height, width):
                if both(block * height + i < rows, j < cols):
                    total[block * height + i, j] = from_float32(row[i, j], dtype, target)
            for i, j in each(height, width):
                square[i, j] = row[i, j] * row[i, j]
            T.reduce_sum(square, scale, dim=1, clear=True)
            tiles.inverse_root(scale, eps)
            for i, j in each(height, width):
                if both(block * height + i < rows, j < cols):
                    y[block * height + i, j] = normalised(row[i, j], scale[i], weight[j])

    return add_rmsnorm_rows if tiles.whole else add_rmsnorm_blocks
