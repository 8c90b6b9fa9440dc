"""Accumulates in float16.

catalogue  B2
guard      bound
cases      offset
mode       verify
"""

import torch


def run(x):
    total = torch.zeros(x.shape[:-1], dtype=torch.float16)
    for part in x.half().split(64, dim=-1):
        total = total + part.sum(dim=-1)
    return (total / x.shape[-1]).float()
