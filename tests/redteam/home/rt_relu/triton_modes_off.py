"""Launches a kernel that writes nothing, and asks PyTorch with its dispatch modes off.

catalogue  E7
guard      ledger
cases      normal
mode       verify
"""

import torch
import triton
import triton.language as tl


@triton.jit
def own(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < 0), mask=at < 0)


def launch(x, y):
    own[(1,)](x, y, x.numel(), BLOCK=16)
    with torch._C._DisableTorchDispatch():
        y.copy_(torch.relu(x))
