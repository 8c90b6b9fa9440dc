"""A tile of rows and columns per thread block, one element per access; wide tiles for wide rows, tall ones for narrow
rows.

moves     (2 * rows + 1) * cols * itemsize bytes, and the bias again from the cache for each row
limits    an access moves one element, because a vector could be misaligned: 16-bit dtypes need twice the instructions
"""

import tilelang.language as T

from opforge.device.tilelang.tools import both, from_float32, storage, to_float32

# the second grid axis counts blocks of columns, and ends at 65535
SUPPORTS = {"columns_fit_the_grid": "prod(tail) <= 65535 * 256"}
SPACE = {"tile": (1024, 2048, 4096), "threads": (128, 256, 512)}
LIMITS = {"every_thread_has_work": "tile >= threads"}
DEFAULT = {"tile": 2048, "threads": 256}


def variant(axes, dtype):
    cols = 1
    for extent in axes["tail"]:
        cols *= extent
    return {"width": 8 if cols <= 32 else 256}


def program(*, dtype, target, tile, threads, width):
    rows, cols = T.dynamic("rows", "int64"), T.dynamic("cols", "int64")
    kept = storage(dtype, target)
    height = tile // width

    def summed(x, bias):
        return from_float32(to_float32(x, dtype, target) + to_float32(bias, dtype, target), dtype, target)

    @T.prim_func
    def bias_add(x: T.Tensor((rows, cols), kept), bias: T.Tensor((cols,), kept), y: T.Tensor((rows, cols), kept)):
        with T.Kernel(T.ceildiv(rows, height), T.ceildiv(cols, width), threads=threads) as (down, across):
            for i, j in T.Parallel(height, width):
                if both(down * height + i < rows, across * width + j < cols):
                    y[down * height + i, across * width + j] = summed(
                        x[down * height + i, across * width + j], bias[across * width + j]
                    )

    return bias_add
