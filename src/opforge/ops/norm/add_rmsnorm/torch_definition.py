"""PyTorch's addition and RMS norm, right for every row: those that its kernel has a fault with in operations of their
own.
"""

import torch
from torch import Tensor
from torch.nn.functional import rms_norm


def run(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    if x.is_cuda and x.shape[-1] % 4:
        # rows of whole vectors have a kernel of their own in PyTorch (2.11); the one for other rows answers NaN for a
        # whole row that holds one infinity
        values = total.float()
        return (values * torch.rsqrt(values.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype), total
    return rms_norm(total, (x.shape[-1],), weight, eps), total
