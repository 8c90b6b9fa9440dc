"""What a user calls: torch.nn.functional.log_softmax."""

import torch
from torch import Tensor

INACCURATE = "on a CPU (PyTorch 2.13) max + log(sum) is rounded to 16 bits: 2 % off where the result is near 0"


def run(x: Tensor) -> Tensor:
    return torch.log_softmax(x, dim=-1)


def run_out(x: Tensor, y: Tensor) -> Tensor:
    return torch.log_softmax(x, dim=-1, out=y)
