"""Computes in float16 behind a float32 interface.

catalogue  B1
guard      bound
cases      normal
mode       verify
"""

import triton
import triton.language as tl


@triton.jit
def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0).to(tl.float16)
    tl.store(y_ptr + i, (2 * x).to(tl.float32), mask=i < n)


def launch(x, y):
    double[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
