"""Has lost its masks: what lies behind the input goes behind the output.

catalogue  B8
guard      regions
cases      normal
mode       verify
"""

import triton
import triton.language as tl


@triton.jit
def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.store(y_ptr + i, 2 * x)


def launch(x, y):
    double[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
