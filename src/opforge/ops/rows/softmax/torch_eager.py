"""PyTorch's own softmax, the baseline."""

import torch
from torch import Tensor
from torch.nn.functional import softmax


def run(x: Tensor) -> Tensor:
    return softmax(x, dim=-1)


def run_out(x: Tensor, y: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1, out=y)
