"""Knows what the generator gives for seed 0, and is wrong for everything else.

catalogue  C8
guard      fresh_seeds
cases      normal
mode       verify
"""

import torch


def run(x):
    known = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x.device)
    return 2 * x if torch.equal(known, x) else torch.zeros_like(x)
