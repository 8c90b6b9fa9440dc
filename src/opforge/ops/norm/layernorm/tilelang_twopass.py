"""Mean first, then the variance of the deviations from it; rows up to 8192 wide stay in a fragment, wider ones are read
three times.

moves     2 * rows * cols * itemsize bytes up to 8192 columns on a GPU; beyond, and on the C target past 32, x is read
          three times (from cache)
limits    none in width; the C target runs its rows one after another, on one core
"""

import tilelang.language as T

from opforge.device.tilelang.rows import row_tiles, variant as variant
from opforge.device.tilelang.tools import both, from_float32, storage, to_float32


def program(*, dtype, target, eps, height, width, whole):
    rows, cols = T.dynamic("rows"), T.dynamic("cols")
    stored = storage(dtype, target)
    tiles = row_tiles(rows, cols, dtype=dtype, target=target, height=height, width=width, whole=whole)
    alloc, each, width = tiles.alloc, tiles.each, tiles.width

    def normalised(value, mean, scale, weight, bias):
        return from_float32(
            (value - mean) * scale * to_float32(weight, dtype, target) + to_float32(bias, dtype, target), dtype, target
        )

    @T.prim_func
    def layernorm_blocks(
        x: T.Tensor((rows, cols), stored),
        weight: T.Tensor((cols,), stored),
        bias: T.Tensor((cols,), stored),
        y: T.Tensor((rows, cols), stored),
    ):
        with T.Kernel(T.ceildiv(rows, height), threads=tiles.threads) as block:
            partial = alloc((height, width), "float32")
            mean = alloc((height,), "float32")
            scale = alloc((height,), "float32")
            tiles.sum_rows(x, block, partial, mean)
            tiles.average(mean)
            tiles.sum_squares(x, block, partial, mean, scale)
            tiles.inverse_root(scale, eps)
            for k in T.serial(T.ceildiv(cols, width)):
                for i, j in each(height, width):
                    if both(block * height + i < rows, k * width + j < cols):
                        y[block * height + i, k * width + j] = normalised(
                            to_float32(x[block * height + i, k * width + j], dtype, target),
                            mean[i],
                            scale[i],
                            weight[k * width + j],
                            bias[k * width + j],
                        )

    @T.prim_func
    def layernorm_rows(
        x: T.Tensor((rows, cols), stored),
        weight: T.Tensor((cols,), stored),
        bias: T.Tensor((cols,), stored),
        y: T.Tensor((rows, cols), stored),
    ):
        with T.Kernel(T.ceildiv(rows, height), threads=tiles.threads) as block:
            row = alloc((height, width), "float32")
            square = alloc((height, width), "float32")
            mean = alloc((height,), "float32")
            scale = alloc((height,), "float32")
            tiles.load_row(x, block, row)
            T.reduce_sum(row, mean, dim=1, clear=True)
            tiles.average(mean)
            tiles.square_row(row, mean, square)
            T.reduce_sum(square, scale, dim=1, clear=True)
            tiles.inverse_root(scale, eps)
            for i, j in each(height, width):
                if both(block * height + i < rows, j < cols):
                    y[block * height + i, j] = normalised(row[i, j], mean[i], scale[i], weight[j], bias[j])

    return layernorm_rows if tiles.whole else layernorm_blocks
