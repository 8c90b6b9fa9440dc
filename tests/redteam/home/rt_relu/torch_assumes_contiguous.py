"""Reads the memory as if it were row-major.

catalogue  B5
guard      cases_transposed
cases      normal transposed
mode       verify
"""

import torch


def run(x):
    return torch.relu(x.as_strided(x.shape, (x.shape[1], 1) if x.ndim == 2 else x.stride()))
