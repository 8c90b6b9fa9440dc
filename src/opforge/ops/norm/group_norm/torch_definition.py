"""PyTorch's group norm in float32, then weight and bias: folded into one factor and one addend they would overflow, or
be NaN, where the result is not. In NCHW: over channels last PyTorch's variance cancels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def run(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    rows = x.to(torch.float32, memory_format=torch.contiguous_format)
    if x.shape[0] * x.shape[2:].numel() * (x.shape[1] // groups) == 1:
        # which F.group_norm takes for training on a batch of one, and refuses
        h = rows - rows
    else:
        h = F.group_norm(rows, groups, eps=eps)
    shape = (-1, *(1,) * (x.ndim - 2))
    return (h * weight.view(shape) + bias.view(shape)).to(x.dtype)
