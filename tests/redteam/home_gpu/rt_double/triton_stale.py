"""Writes nothing, in the hope that the memory of the result still holds the reference's answer.

catalogue  A3
guard      poison
cases      normal
mode       verify
"""

import triton
import triton.language as tl


@triton.jit
def nothing(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < 0), mask=i < 0)


def launch(x, y):
    nothing[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
