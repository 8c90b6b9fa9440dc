"""Makes zeros of NaN.

catalogue  B6
guard      pattern
cases      special
mode       verify
"""

import triton
import triton.language as tl


@triton.jit
def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(y_ptr + i, tl.where(x == x, 2 * x, 0.0), mask=i < n)


def launch(x, y):
    double[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
