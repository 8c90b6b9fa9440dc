"""NaN everywhere, for a comparison that skips it.

catalogue  A7
guard      pattern
cases      normal
mode       verify
"""

import torch


def run(x):
    return torch.full(x.shape[:-1], float("nan"))
