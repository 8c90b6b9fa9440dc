"""Launches a kernel that writes nothing, and has a thread of its own ask PyTorch, whom no mode watches there.

catalogue  E7
guard      ledger
cases      normal
mode       verify
"""

import threading

import torch
import triton
import triton.language as tl


@triton.jit
def own(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < 0), mask=at < 0)


def launch(x, y):
    own[(1,)](x, y, x.numel(), BLOCK=16)
    work = threading.Thread(target=lambda: y.copy_(torch.relu(x)))
    work.start()
    work.join()
