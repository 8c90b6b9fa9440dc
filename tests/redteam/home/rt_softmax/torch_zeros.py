"""Zeros: a fixed tolerance lets them through on wide rows.

catalogue  A1
guard      bound
cases      wide
mode       verify
"""

import torch


def run(x):
    return torch.zeros(x.shape)
