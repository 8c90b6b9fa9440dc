"""Returns one of two results in turn.

catalogue  M2
guard      new_memory
cases      normal
mode       verify
"""

import torch

KEPT, CALLS = {}, [0]


def run(x):
    pair = KEPT.setdefault(x.shape, [torch.empty(x.shape) for _ in range(2)])
    CALLS[0] += 1
    return torch.softmax(x, dim=-1, out=pair[CALLS[0] % 2])
