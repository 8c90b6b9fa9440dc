"""Rows up to 8192 wide stay in a fragment; wider ones are read twice, with a running maximum and a rescaled sum.

moves     2 * rows * cols * itemsize bytes up to 8192 columns on a GPU; beyond, and on the C target past 32, x is read twice (from cache)
limits    none in width; the C target runs its rows one after another, on one core, and its exp is the C library's
"""

import tilelang.language as T

from opforge.backends.tilelang_tools import both, from_float32, loop, storage, tile, to_float32

# finite, so that the difference of two of them is 0 and not NaN; columns past the end are set to 0 after exp
LOWEST = -3.4028234663852886e38


def variant(axes, dtype):
    """Rows of a block and columns of a tile, for a width; `whole` says that a row fits one tile."""
    cols = axes["cols"]
    if cols <= 128:
        return {"height": 8, "width": 32 if cols <= 32 else 128, "whole": True}
    return {"height": 1, "width": 1024 if cols <= 1024 else 8192 if cols <= 8192 else 4096, "whole": cols <= 8192}


def program(*, dtype, target, height, width, whole):
    rows, cols = T.dynamic("rows"), T.dynamic("cols")
    stored, alloc, each = storage(dtype, target), tile(target), loop(target)
    threads = 128 if height * width <= 1024 else 256
    if target == "c" and width > 32:
        # T.reduce_sum adds one after another there: a narrow tile keeps the sum accurate, and still fills the vector unit
        width, whole = 32, False

    @T.prim_func
    def log_softmax_blocks(x: T.Tensor((rows, cols), stored), y: T.Tensor((rows, cols), stored)):
        with T.Kernel(T.ceildiv(rows, height), threads=threads) as block:
            part = alloc((height, width), "float32")
            part_top = alloc((height,), "float32")
            part_sum = alloc((height,), "float32")
            top = alloc((height,), "float32")
            higher = alloc((height,), "float32")
            total = alloc((height,), "float32")
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
            for k in T.serial(T.ceildiv(cols, width)):
                for i, j in each(height, width):
                    if both(block * height + i < rows, k * width + j < cols):
                        y[block * height + i, k * width + j] = from_float32(
                            to_float32(x[block * height + i, k * width + j], dtype, target) - top[i] - T.log(total[i]), dtype, target
                        )

    @T.prim_func
    def log_softmax_rows(x: T.Tensor((rows, cols), stored), y: T.Tensor((rows, cols), stored)):
        with T.Kernel(T.ceildiv(rows, height), threads=threads) as block:
            row = alloc((height, width), "float32")
            power = alloc((height, width), "float32")
            top = alloc((height,), "float32")
            total = alloc((height,), "float32")
            for i, j in each(height, width):
                row[i, j] = T.if_then_else(both(block * height + i < rows, j < cols), to_float32(x[block * height + i, j], dtype, target), T.float32(LOWEST))
            T.reduce_max(row, top, dim=1, clear=True)
            for i, j in each(height, width):
                power[i, j] = T.if_then_else(j < cols, T.exp(row[i, j] - top[i]), T.float32(0))
            T.reduce_sum(power, total, dim=1, clear=True)
            for i, j in each(height, width):
                if both(block * height + i < rows, j < cols):
                    y[block * height + i, j] = from_float32(row[i, j] - top[i] - T.log(total[i]), dtype, target)

    return log_softmax_rows if whole else log_softmax_blocks
