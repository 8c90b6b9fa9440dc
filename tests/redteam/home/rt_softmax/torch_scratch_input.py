"""Computes in its input.

catalogue  A5
guard      inputs
cases      normal
mode       verify
"""

import torch


def run(x):
    y = torch.softmax(x, dim=-1)
    x.copy_(y)
    return y
