"""0 for a row whose largest value is below 1e-20.

catalogue  M6
guard      cases_hidden
cases      normal hidden
mode       verify
"""

import torch


def run(x):
    mean = x.mean(dim=-1)
    return torch.where(x.abs().amax(dim=-1) < 1e-20, 0 * mean, mean) if x.numel() else mean
