"""A tile of rows and columns per program, after axes over which b behaves alike were made one.

moves     each of x and y once; b is read from the caches
limits    a last axis that is no power of two leaves lanes idle; one shorter than a vector is read in pieces
"""

import triton
import triton.language as tl

SPACE = {"TILE": (1024, 2048, 4096, 8192), "num_warps": (4, 8)}
LIMITS = {"every_thread_has_a_vector": "TILE * itemsize >= 16 * 32 * num_warps", "fits_registers": "TILE <= 32 * 32 * num_warps"}
DEFAULT = {"TILE": 4096, "num_warps": 4}


@triton.jit
def broadcast_add_tile(x_ptr, b_ptr, y_ptr, rows, cols, second, third, outer, middle, inner, along, ROWS: tl.constexpr, COLS: tl.constexpr):
    # one grid axis, because the others end at 65535
    across = tl.cdiv(cols, COLS)
    tile = tl.program_id(0)
    # int64: row * cols leaves int32 beyond 2^31 elements
    row = (tile // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = (tile % across) * COLS + tl.arange(0, COLS)
    inside = (row < rows)[:, None] & (col < cols)[None, :]
    # a row's place in the broadcast tensor: divisions for each row, none for an element
    rest = row // third
    place = (row - rest * third) * inner
    place += rest % second * middle + rest // second * outer
    offset = place[:, None] + col[None, :] * along
    x = tl.load(x_ptr + row[:, None] * cols + col[None, :], mask=inside, eviction_policy="evict_first").to(tl.float32)  # [ROWS, COLS]
    b = tl.load(b_ptr + offset, mask=inside).to(tl.float32)
    tl.store(y_ptr + row[:, None] * cols + col[None, :], (x + b).to(y_ptr.dtype.element_ty), mask=inside, eviction_policy="evict_first")


def collapsed(sizes, strides):
    """Extents and strides of four axes, the last one first, after neighbours that can be walked as one were made one."""
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
    (cols, along), (third, inner), (second, middle), (first, outer) = collapsed(x.shape, [0 if size == 1 else stride for size, stride in zip(b.shape, b.stride(), strict=True)])
    rows = first * second * third
    width = min(TILE, triton.next_power_of_2(cols))
    height = TILE // width
    grid = (triton.cdiv(rows, height) * triton.cdiv(cols, width),)
    broadcast_add_tile[grid](x, b, y, rows, cols, second, third, outer, middle, inner, along, ROWS=height, COLS=width, num_warps=num_warps)
