"""Returns one of three results in turn: the fourth call overwrites what the first one returned.

catalogue  M2
guard      new_memory
cases      normal
mode       verify
"""

import torch

KEPT, CALLS = {}, [0]


def run(x):
    ring = KEPT.setdefault(x.shape, [torch.empty(x.shape) for _ in range(3)])
    CALLS[0] += 1
    return torch.clamp(x, min=0, out=ring[CALLS[0] % 3])
