"""What PyTorch's autograd runs for softmax."""

import torch
from torch import Tensor

INACCURATE = "on a GPU (PyTorch 2.11) dy * y is rounded to 16 bits before it is added up: 0.6 % off in bfloat16"


def run(y: Tensor, dy: Tensor) -> Tensor:
    return torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype)
