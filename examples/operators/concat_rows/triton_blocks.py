"""One launch for each matrix of the list: blocks of its columns, one row per program.

moves     2 * rows * total * itemsize bytes: the least possible
limits    small matrices are a launch each
"""

import triton
import triton.language as tl

LAYOUTS = ("contiguous", "rows")
SPACE = {"BLOCK": (128, 256, 512, 1024)}
DEFAULT = {"BLOCK": 256}


@triton.jit
def copy_block(x_ptr, y_ptr, x_stride, y_stride, cols, BLOCK: tl.constexpr):
    # int64: row * stride leaves int32 beyond 2**31 elements
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = col < cols
    tl.store(y_ptr + row * y_stride + col, tl.load(x_ptr + row * x_stride + col, mask=inside), mask=inside)


def launch(xs, y, *, BLOCK):
    begin = 0
    for x in xs:
        rows, cols = x.shape
        if rows and cols:
            part = y[:, begin : begin + cols]
            copy_block[(rows, triton.cdiv(cols, BLOCK))](x, part, x.stride(0), y.stride(0), cols, BLOCK=BLOCK)
        begin += cols
