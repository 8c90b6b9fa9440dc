"""Rows up to 8192 wide stay in two fragments; wider ones are read twice, the sum of y * dy first.

moves     3 * rows * cols * itemsize bytes up to 8192 columns on a GPU; beyond, and on the C target past 32, y and dy
          are read twice (from cache)
limits    none in width; the C target runs its rows one after another, on one core
"""

import tilelang.language as T

from opforge.device.tilelang.rows import row_tiles, variant as variant
from opforge.device.tilelang.tools import both, from_float32, storage, to_float32


def program(*, dtype, target, height, width, whole):
    rows, cols = T.dynamic("rows"), T.dynamic("cols")
    stored = storage(dtype, target)
    tiles = row_tiles(rows, cols, dtype=dtype, target=target, height=height, width=width, whole=whole)
    alloc, each, width = tiles.alloc, tiles.each, tiles.width

    @T.prim_func
    def gradient_blocks(
        y: T.Tensor((rows, cols), stored), dy: T.Tensor((rows, cols), stored), dx: T.Tensor((rows, cols), stored)
    ):
        with T.Kernel(T.ceildiv(rows, height), threads=tiles.threads) as block:
            terms = alloc((height, width), "float32")
            part = alloc((height,), "float32")
            total = alloc((height,), "float32")
            for i in each(height):
                total[i] = T.float32(0)
            for k in T.serial(T.ceildiv(cols, width)):
                for i, j in each(height, width):
                    terms[i, j] = T.if_then_else(
                        both(block * height + i < rows, k * width + j < cols),
                        to_float32(y[block * height + i, k * width + j], dtype, target)
                        * to_float32(dy[block * height + i, k * width + j], dtype, target),
                        T.float32(0),
                    )
                T.reduce_sum(terms, part, dim=1, clear=True)
                for i in each(height):
                    total[i] = total[i] + part[i]
            for k in T.serial(T.ceildiv(cols, width)):
                for i, j in each(height, width):
                    if both(block * height + i < rows, k * width + j < cols):
                        dx[block * height + i, k * width + j] = from_float32(
                            to_float32(y[block * height + i, k * width + j], dtype, target)
                            * (to_float32(dy[block * height + i, k * width + j], dtype, target) - total[i]),
                            dtype,
                            target,
                        )

    @T.prim_func
    def gradient_rows(
        y: T.Tensor((rows, cols), stored), dy: T.Tensor((rows, cols), stored), dx: T.Tensor((rows, cols), stored)
    ):
        with T.Kernel(T.ceildiv(rows, height), threads=tiles.threads) as block:
            result = alloc((height, width), "float32")
            gradient = alloc((height, width), "float32")
            terms = alloc((height, width), "float32")
            total = alloc((height,), "float32")
            tiles.load_row(y, block, result)
            tiles.load_row(dy, block, gradient)
            for i, j in each(height, width):
                terms[i, j] = result[i, j] * gradient[i, j]
            T.reduce_sum(terms, total, dim=1, clear=True)
            for i, j in each(height, width):
                if both(block * height + i < rows, j < cols):
                    dx[block * height + i, j] = from_float32(result[i, j] * (gradient[i, j] - total[i]), dtype, target)

    return gradient_rows if tiles.whole else gradient_blocks
