"""PyTorch's log_softmax, in float32 where 16 bits are not enough."""

import torch
from torch import Tensor
from torch.nn.functional import log_softmax


def run(x: Tensor) -> Tensor:
    if x.device.type == "cpu" and x.dtype != torch.float32:
        # PyTorch 2.13 rounds max + log(sum) to 16 bits on the CPU: 2 % off where the result is near 0
        return log_softmax(x, dim=-1, dtype=torch.float32).to(x.dtype)
    return log_softmax(x, dim=-1)
