"""Writes before the start of its input.

catalogue  B8
guard      regions
cases      normal
mode       verify
"""

import torch


def run(x):
    torch.empty(0).set_(x.untyped_storage(), x.storage_offset() - 4, (4,)).zero_()
    return torch.relu(x)
