"""Computes in bfloat16 from 8192 elements on.

catalogue  M5
guard      cases_long
cases      normal long
mode       verify
"""

import triton
import triton.language as tl


@triton.jit
def double(x_ptr, y_ptr, n, COARSE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    if COARSE:
        x = x.to(tl.bfloat16).to(tl.float32)
    tl.store(y_ptr + i, 2 * x, mask=i < n)


def launch(x, y):
    n = x.numel()
    double[(triton.cdiv(n, 256),)](x, y, n, COARSE=n >= 8192, BLOCK=256)
