"""PyTorch's own linear layer, then the activation and the sum with the residual in passes of their own; the
baseline.
"""

import torch.nn.functional as F
from torch import Tensor

from opforge.device.torch.linear import linear_rows

ACTIVATIONS = {"none": lambda z: z, "relu": F.relu, "gelu": F.gelu, "silu": F.silu}


def run(x: Tensor, w: Tensor, bias: Tensor, residual: Tensor, *, activation: str) -> Tensor:
    return ACTIVATIONS[activation](linear_rows(x, w, bias)) + residual
