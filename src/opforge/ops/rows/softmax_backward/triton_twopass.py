"""A block of the row at a time: the sum of y * dy first, then the result.

moves     5 * rows * cols * itemsize bytes: y and dy are read twice (the second time from L2 where they fit), dx written
          once
limits    none in width
"""

import triton
import triton.language as tl

from opforge.device.triton.blocks import load_again, store_once

LAYOUTS = ("contiguous", "rows")
SPACE = {"block": (2048, 4096, 8192), "warps": (8, 16)}
DEFAULT = {"block": 4096, "warps": 8}


@triton.jit
def gradient_blocks(y_ptr, dy_ptr, dx_ptr, cols, y_stride, dy_stride, dx_stride, BLOCK: tl.constexpr):
    # int64: row * stride leaves int32 beyond 32768 x 65536 elements
    row = tl.program_id(0).to(tl.int64)
    y_row, dy_row, dx_row = y_ptr + row * y_stride, dy_ptr + row * dy_stride, dx_ptr + row * dx_stride
    col = tl.arange(0, BLOCK)
    # every lane keeps a sum of its own, so that blocks need no reduction between them
    part = tl.zeros([BLOCK], tl.float32)
    for start in range(0, cols, BLOCK):
        inside = start + col < cols
        y = tl.load(y_row + start + col, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)  # [BLOCK]
        part += y * tl.load(dy_row + start + col, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
    total = tl.sum(part, axis=0)
    for start in range(0, cols, BLOCK):
        inside = start + col < cols
        y = load_again(y_row + start + col, inside, 0.0)
        dy = load_again(dy_row + start + col, inside, 0.0)
        store_once(dx_row + start + col, y * (dy - total), inside)


def launch(y, dy, dx, block, warps):
    rows, cols = y.shape
    block = min(block, max(256, triton.next_power_of_2(cols)))
    gradient_blocks[(rows,)](
        y, dy, dx, cols, y.stride(0), dy.stride(0), dx.stride(0), BLOCK=block, num_warps=min(warps, block // 128)
    )
