"""The maximum with 0, which keeps NaN."""

import torch


def run(x):
    return torch.maximum(x, torch.zeros((), dtype=x.dtype))
