"""An exp of 14 bits.

catalogue  M5
guard      bound
cases      normal
mode       verify
"""

import torch


def run(x):
    y = (x - x.amax(dim=-1, keepdim=True)).exp()
    y = (y.view(torch.int32) & ~0x1FF).view(torch.float32)
    return y / y.sum(dim=-1, keepdim=True)
