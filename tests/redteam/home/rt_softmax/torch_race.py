"""Wrong in every fifth call, as a race would have it.

catalogue  B7
guard      repeats
cases      normal
mode       verify
"""

import torch

CALLS = [0]


def run(x):
    CALLS[0] += 1
    y = torch.softmax(x, dim=-1)
    if CALLS[0] % 5 == 4:
        y[..., 0] = 0
    return y
