"""Has a thread of its own ask PyTorch, whom no mode watches there, beside a kernel that does nothing.

catalogue  E7
guard      device_names
cases      normal
mode       verify
"""

import threading

import torch
import triton
import triton.language as tl


@triton.jit
def nothing(y_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y_ptr + i, 0.0, mask=i < 0)


def launch(x, y):
    nothing[(1,)](y, BLOCK=32)
    work = threading.Thread(target=lambda: torch.mul(x, 2, out=y))
    work.start()
    work.join()
