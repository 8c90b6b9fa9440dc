"""What PyTorch's autograd runs for gelu."""

import torch
from torch import Tensor


def run(x: Tensor, dy: Tensor, approximate: str) -> Tensor:
    return torch.ops.aten.gelu_backward(dy, x, approximate=approximate)
