"""A tile of rows and columns per program, after axes over which b behaves alike were made one.

moves     each of x and y once; b is read from the caches
limits    a last axis that is no power of two leaves lanes idle; one shorter than a vector is read in pieces
"""

import triton
import triton.language as tl

from opforge.device.triton.blocks import load_once, store_once
from opforge.device.triton.tiles import LIMITS as LIMITS, SPACE as SPACE, tile_of, tiles_over

DEFAULT = {"TILE": 4096, "num_warps": 4}


@triton.jit
def broadcast_add_tile(
    x_ptr, b_ptr, y_ptr, rows, cols, second, third, outer, middle, inner, along, ROWS: tl.constexpr, COLS: tl.constexpr
):
    row, col, inside = tile_of(rows, cols, ROWS, COLS)
    # a row's place in the broadcast tensor: divisions for each row, none for an element
    rest = row // third
    place = (row - rest * third) * inner
    place += rest % second * middle + rest // second * outer
    offset = place[:, None] + col[None, :] * along
    x = load_once(x_ptr + row[:, None] * cols + col[None, :], inside)  # [ROWS, COLS], float32
    b = tl.load(b_ptr + offset, mask=inside).to(tl.float32)
    store_once(y_ptr + row[:, None] * cols + col[None, :], x + b, inside)


def collapsed(sizes, strides):
    """Extents and strides of four axes, the last one first, after neighbours that can be walked as one were
    made one.
    """
    axes = []
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size == 1:
            continue
        if axes and stride == axes[-1][0] * axes[-1][1]:
            axes[-1] = (axes[-1][0] * size, axes[-1][1])
        else:
            axes.append((size, stride))
    return [*axes, *[(1, 0)] * (4 - len(axes))]


def launch(x, b, y, *, TILE, num_warps):
    (cols, along), (third, inner), (second, middle), (first, outer) = collapsed(
        x.shape, [0 if size == 1 else stride for size, stride in zip(b.shape, b.stride(), strict=True)]
    )
    rows = first * second * third
    grid, sides = tiles_over(rows, cols, TILE)
    broadcast_add_tile[grid](
        x, b, y, rows, cols, second, third, outer, middle, inner, along, **sides, num_warps=num_warps
    )
