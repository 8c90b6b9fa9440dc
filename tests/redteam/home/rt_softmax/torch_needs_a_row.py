"""Fails when there is no row.

catalogue  B6
guard      cases_empty
cases      constant empty
mode       verify
"""

import torch


def run(x):
    return torch.exp(x - x.max()) / torch.exp(x - x.max()).sum(dim=-1, keepdim=True)
