"""Keeps a constant by dtype; no answer is kept."""

import torch

CONSTANTS = {}


def run(x):
    # a constant is kept by dtype; no answer is
    zero = CONSTANTS.setdefault(x.dtype, torch.zeros((), dtype=x.dtype))
    return x.clamp(min=zero)
