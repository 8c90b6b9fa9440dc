"""Mean first, then the variance of the deviations from it; rows up to 8192 wide stay in a fragment, wider ones are read three times.

moves     2 * rows * cols * itemsize bytes up to 8192 columns on a GPU; beyond, and on the C target past 32, x is read three times (from cache)
limits    none in width; the C target runs its rows one after another, on one core
"""

import tilelang.language as T

from opforge.backends.tilelang_tools import both, from_float32, loop, storage, tile, to_float32


def variant(axes, dtype):
    """Rows of a block and columns of a tile, for a width; `whole` says that a row fits one tile."""
    cols = axes["cols"]
    if cols <= 128:
        return {"height": 8, "width": 32 if cols <= 32 else 128, "whole": True}
    return {"height": 1, "width": 1024 if cols <= 1024 else 8192 if cols <= 8192 else 4096, "whole": cols <= 8192}


def program(*, dtype, target, eps, height, width, whole):
    rows, cols = T.dynamic("rows"), T.dynamic("cols")
    stored, alloc, each = storage(dtype, target), tile(target), loop(target)
    threads = 128 if height * width <= 1024 else 256
    if target == "c" and width > 32:
        # T.reduce_sum adds one after another there: a narrow tile keeps the sum accurate, and still fills the vector unit
        width, whole = 32, False

    @T.prim_func
    def layernorm_blocks(x: T.Tensor((rows, cols), stored), weight: T.Tensor((cols,), stored), bias: T.Tensor((cols,), stored), y: T.Tensor((rows, cols), stored)):
        with T.Kernel(T.ceildiv(rows, height), threads=threads) as block:
            # one partial sum for each column of the tile: no reduction inside the loops, and loops that vectorise
            partial = alloc((height, width), "float32")
            mean = alloc((height,), "float32")
            scale = alloc((height,), "float32")
            for i, j in each(height, width):
                partial[i, j] = T.float32(0)
            for k in T.serial(T.ceildiv(cols, width)):
                for i, j in each(height, width):
                    if both(block * height + i < rows, k * width + j < cols):
                        partial[i, j] = partial[i, j] + to_float32(x[block * height + i, k * width + j], dtype, target)
            T.reduce_sum(partial, mean, dim=1, clear=True)
            for i in each(height):
                mean[i] = mean[i] / T.Cast("float32", cols)
            for i, j in each(height, width):
                partial[i, j] = T.float32(0)
            for k in T.serial(T.ceildiv(cols, width)):
                for i, j in each(height, width):
                    if both(block * height + i < rows, k * width + j < cols):
                        partial[i, j] = partial[i, j] + (to_float32(x[block * height + i, k * width + j], dtype, target) - mean[i]) * (
                            to_float32(x[block * height + i, k * width + j], dtype, target) - mean[i]
                        )
            T.reduce_sum(partial, scale, dim=1, clear=True)
            for i in each(height):
                scale[i] = T.float32(1) / T.sqrt(scale[i] / T.Cast("float32", cols) + T.float32(eps))
            for k in T.serial(T.ceildiv(cols, width)):
                for i, j in each(height, width):
                    if both(block * height + i < rows, k * width + j < cols):
                        y[block * height + i, k * width + j] = from_float32(
                            (to_float32(x[block * height + i, k * width + j], dtype, target) - mean[i]) * scale[i] * to_float32(weight[k * width + j], dtype, target)
                            + to_float32(bias[k * width + j], dtype, target),
                            dtype,
                            target,
                        )

    @T.prim_func
    def layernorm_rows(x: T.Tensor((rows, cols), stored), weight: T.Tensor((cols,), stored), bias: T.Tensor((cols,), stored), y: T.Tensor((rows, cols), stored)):
        with T.Kernel(T.ceildiv(rows, height), threads=threads) as block:
            row = alloc((height, width), "float32")
            square = alloc((height, width), "float32")
            mean = alloc((height,), "float32")
            scale = alloc((height,), "float32")
            for i, j in each(height, width):
                row[i, j] = T.if_then_else(both(block * height + i < rows, j < cols), to_float32(x[block * height + i, j], dtype, target), T.float32(0))
            T.reduce_sum(row, mean, dim=1, clear=True)
            for i in each(height):
                mean[i] = mean[i] / T.Cast("float32", cols)
            for i, j in each(height, width):
                square[i, j] = T.if_then_else(j < cols, (row[i, j] - mean[i]) * (row[i, j] - mean[i]), T.float32(0))
            T.reduce_sum(square, scale, dim=1, clear=True)
            for i in each(height):
                scale[i] = T.float32(1) / T.sqrt(scale[i] / T.Cast("float32", cols) + T.float32(eps))
            for i, j in each(height, width):
                if both(block * height + i < rows, j < cols):
                    y[block * height + i, j] = from_float32(
                        (row[i, j] - mean[i]) * scale[i] * to_float32(weight[j], dtype, target) + to_float32(bias[j], dtype, target), dtype, target
                    )

    return layernorm_rows if whole else layernorm_blocks
