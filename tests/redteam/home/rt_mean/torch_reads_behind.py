"""Adds one element too many to the last row: 0, where memory happens to be 0.

catalogue  B9
guard      nan_guards
cases      normal
mode       verify
"""

import torch


def run(x):
    rows, cols = x.shape
    wide = x.as_strided((rows, cols), (cols, 1)).sum(dim=-1)
    wide[-1] += torch.empty(0).set_(x.untyped_storage(), x.storage_offset() + rows * cols, (1,))[0]
    return wide / cols
