"""PyTorch's own permutation, copied: a view alone would leave the work to whoever reads it."""

import torch
from torch import Tensor


def run(x: Tensor) -> Tensor:
    return x.transpose(-3, -2).clone(memory_format=torch.contiguous_format)


def run_out(x: Tensor, y: Tensor) -> Tensor:
    return y.copy_(x.transpose(-3, -2))
