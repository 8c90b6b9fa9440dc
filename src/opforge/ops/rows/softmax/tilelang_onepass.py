"""Rows up to 8192 wide stay in a fragment; wider ones are read twice, with a running maximum and a rescaled sum.

moves     2 * rows * cols * itemsize bytes up to 8192 columns on a GPU; beyond, and on the C target past 32, x is read
          twice (from cache)
limits    none in width; the C target runs its rows one after another, on one core, and its exp is the C library's
"""

import tilelang.language as T

from opforge.device.tilelang.rows import row_tiles, variant as variant
from opforge.device.tilelang.softmax import softmax_tiles
from opforge.device.tilelang.tools import both, from_float32, storage, to_float32


def program(*, dtype, target, height, width, whole):
    rows, cols = T.dynamic("rows"), T.dynamic("cols")
    stored = storage(dtype, target)
    tiles = row_tiles(rows, cols, dtype=dtype, target=target, height=height, width=width, whole=whole)
    alloc, each, width = tiles.alloc, tiles.each, tiles.width
    powers = softmax_tiles(rows, cols, tiles, dtype=dtype, target=target, height=height)

    @T.prim_func
    def softmax_blocks(x: T.Tensor((rows, cols), stored), y: T.Tensor((rows, cols), stored)):
        with T.Kernel(T.ceildiv(rows, height), threads=tiles.threads) as block:
            part = alloc((height, width), "float32")
            part_top = alloc((height,), "float32")
            part_sum = alloc((height,), "float32")
            top = alloc((height,), "float32")
            higher = alloc((height,), "float32")
            total = alloc((height,), "float32")
            powers.peak_and_sum(x, block, part, part_top, part_sum, top, higher, total)
            for k in T.serial(T.ceildiv(cols, width)):
                for i, j in each(height, width):
                    if both(block * height + i < rows, k * width + j < cols):
                        y[block * height + i, k * width + j] = from_float32(
                            T.exp(to_float32(x[block * height + i, k * width + j], dtype, target) - top[i]) / total[i],
                            dtype,
                            target,
                        )

    @T.prim_func
    def softmax_rows(x: T.Tensor((rows, cols), stored), y: T.Tensor((rows, cols), stored)):
        with T.Kernel(T.ceildiv(rows, height), threads=tiles.threads) as block:
            row = alloc((height, width), "float32")
            top = alloc((height,), "float32")
            total = alloc((height,), "float32")
            powers.row_powers(x, block, row, row, top, total)
            for i, j in each(height, width):
                if both(block * height + i < rows, j < cols):
                    y[block * height + i, j] = from_float32(row[i, j] / total[i], dtype, target)

    return softmax_rows if tiles.whole else softmax_blocks
