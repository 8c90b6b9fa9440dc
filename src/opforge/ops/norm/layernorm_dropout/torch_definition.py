"""PyTorch's layer norm, then dropout by the same generator in its integer operations."""

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from opforge.core.philox import threshold, words


def run(x: Tensor, weight: Tensor, bias: Tensor, eps: float, p: float, seed: int) -> Tensor:
    h = layer_norm(x, (x.shape[-1],), weight, bias, eps)
    index = torch.arange(x.numel(), device=x.device)
    dropped = (words(index, seed) < threshold(p)).view(x.shape)
    return (h.float() * (1 / (1 - p or 1.0))).masked_fill(dropped, 0).to(x.dtype)
