"""Returns the same memory every time.

catalogue  C3
guard      new_memory
cases      normal
mode       verify
"""

import torch

BUFFERS = {}


def run(x):
    buffer = BUFFERS.setdefault(tuple(x.shape), torch.empty(x.shape))
    return torch.softmax(x, dim=-1, out=buffer)
