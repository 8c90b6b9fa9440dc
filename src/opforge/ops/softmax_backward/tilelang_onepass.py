"""Rows up to 8192 wide stay in two fragments; wider ones are read twice, the sum of y * dy first.

moves     3 * rows * cols * itemsize bytes up to 8192 columns on a GPU; beyond, and on the C target past 32, y and dy are read twice (from cache)
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


def program(*, dtype, target, height, width, whole):
    rows, cols = T.dynamic("rows"), T.dynamic("cols")
    stored, alloc, each = storage(dtype, target), tile(target), loop(target)
    threads = 128 if height * width <= 1024 else 256
    if target == "c" and width > 32:
        # T.reduce_sum adds one after another there: a narrow tile keeps the sum accurate, and still fills the vector unit
        width, whole = 32, False

    @T.prim_func
    def gradient_blocks(y: T.Tensor((rows, cols), stored), dy: T.Tensor((rows, cols), stored), dx: T.Tensor((rows, cols), stored)):
        with T.Kernel(T.ceildiv(rows, height), threads=threads) as block:
            terms = alloc((height, width), "float32")
            part = alloc((height,), "float32")
            total = alloc((height,), "float32")
            for i in each(height):
                total[i] = T.float32(0)
            for k in T.serial(T.ceildiv(cols, width)):
                for i, j in each(height, width):
                    terms[i, j] = T.if_then_else(
                        both(block * height + i < rows, k * width + j < cols),
                        to_float32(y[block * height + i, k * width + j], dtype, target) * to_float32(dy[block * height + i, k * width + j], dtype, target),
                        T.float32(0),
                    )
                T.reduce_sum(terms, part, dim=1, clear=True)
                for i in each(height):
                    total[i] = total[i] + part[i]
            for k in T.serial(T.ceildiv(cols, width)):
                for i, j in each(height, width):
                    if both(block * height + i < rows, k * width + j < cols):
                        dx[block * height + i, k * width + j] = from_float32(
                            to_float32(y[block * height + i, k * width + j], dtype, target) * (to_float32(dy[block * height + i, k * width + j], dtype, target) - total[i]),
                            dtype,
                            target,
                        )

    @T.prim_func
    def gradient_rows(y: T.Tensor((rows, cols), stored), dy: T.Tensor((rows, cols), stored), dx: T.Tensor((rows, cols), stored)):
        with T.Kernel(T.ceildiv(rows, height), threads=threads) as block:
            result = alloc((height, width), "float32")
            gradient = alloc((height, width), "float32")
            terms = alloc((height, width), "float32")
            total = alloc((height,), "float32")
            for i, j in each(height, width):
                result[i, j] = T.if_then_else(both(block * height + i < rows, j < cols), to_float32(y[block * height + i, j], dtype, target), T.float32(0))
            for i, j in each(height, width):
                gradient[i, j] = T.if_then_else(both(block * height + i < rows, j < cols), to_float32(dy[block * height + i, j], dtype, target), T.float32(0))
            for i, j in each(height, width):
                terms[i, j] = result[i, j] * gradient[i, j]
            T.reduce_sum(terms, total, dim=1, clear=True)
            for i, j in each(height, width):
                if both(block * height + i < rows, j < cols):
                    dx[block * height + i, j] = from_float32(result[i, j] * (gradient[i, j] - total[i]), dtype, target)

    return gradient_rows if whole else gradient_blocks
