"""Leaves out the last block in every eighth call.

catalogue  B7
guard      repeats
cases      normal
mode       verify
"""

import triton
import triton.language as tl


@triton.jit
def double(x_ptr, y_ptr, n, blocks, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(y_ptr + i, 2 * x, mask=(i < n) & (tl.program_id(0) < blocks))


CALLS = [0]


def launch(x, y):
    CALLS[0] += 1
    blocks = triton.cdiv(x.numel(), 256)
    double[(blocks,)](x, y, x.numel(), blocks - (CALLS[0] % 8 == 0), BLOCK=256)
