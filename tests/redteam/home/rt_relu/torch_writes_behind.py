"""Writes past the end of its input.

catalogue  B8
guard      regions
cases      normal
mode       verify
"""

import torch


def run(x):
    end = x.storage_offset() + x.numel()
    torch.empty(0).set_(x.untyped_storage(), end, (3,)).zero_()
    return torch.relu(x)
