"""Has PyTorch compute, and launches a kernel that does nothing so that one was launched.

catalogue  E7
guard      trace
cases      normal
mode       verify
"""

import torch
import triton
import triton.language as tl


@triton.jit
def nothing(y_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y_ptr + i, 0.0, mask=i < 0)


def launch(x, y):
    nothing[(1,)](y, BLOCK=32)
    torch.mul(x, 2, out=y)
