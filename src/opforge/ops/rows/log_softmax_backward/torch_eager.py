"""What PyTorch's autograd runs for log_softmax, the baseline."""

import torch
from torch import Tensor


def run(y: Tensor, dy: Tensor) -> Tensor:
    return torch.ops.aten._log_softmax_backward_data(dy, y, -1, y.dtype)
