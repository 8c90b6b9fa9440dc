"""PyTorch's own linear layer, then the activation in a pass of its own; the baseline."""

import torch.nn.functional as F
from torch import Tensor

from opforge.device.torch.linear import linear_rows


def run(x: Tensor, w: Tensor, bias: Tensor, *, activation: str) -> Tensor:
    z = linear_rows(x, w, bias)
    if activation == "relu":
        return F.relu(z)
    if activation == "gelu":
        return F.gelu(z)
    if activation == "silu":
        return F.silu(z)
    return z
