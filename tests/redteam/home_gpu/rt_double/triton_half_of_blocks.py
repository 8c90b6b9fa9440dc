"""Of long vectors it does every second block.

catalogue  A9
guard      cases_long
cases      normal long
mode       verify
"""

import triton
import triton.language as tl


@triton.jit
def double(x_ptr, y_ptr, n, step, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(y_ptr + i, 2 * x, mask=(i < n) & (tl.program_id(0) % step == 0))


def launch(x, y):
    n = x.numel()
    double[(triton.cdiv(n, 256),)](x, y, n, 2 if n >= 8192 else 1, BLOCK=256)
