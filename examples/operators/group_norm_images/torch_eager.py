"""PyTorch's group norm in float32, then weight and bias: together they are folded into one factor and one addend, which
overflow where the result does not. In NCHW: over channels last PyTorch (2.13, on a CPU) takes the variance as the mean
of squares less the square of the mean, off by a third of a deviation for 4000 elements a channel about 100.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

# F.group_norm raises ValueError for one value of a channel, which it takes for training on a batch of one
SUPPORTS = {"more_than_one_value_a_channel": "batch * (channels // groups) * height * width != 1"}


def run(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    y = F.group_norm(x.to(torch.float32, memory_format=torch.contiguous_format), groups, eps=eps)
    return (y * weight[:, None, None] + bias[:, None, None]).to(x.dtype)
