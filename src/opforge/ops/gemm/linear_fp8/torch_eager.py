"""PyTorch's own linear layer, then activation, scaling and conversion in passes of their own; the baseline."""

import torch
import torch.nn.functional as F
from torch import Tensor

from opforge.device.torch.linear import linear_rows

ACTIVATIONS = {"none": lambda z: z, "relu": F.relu, "gelu": F.gelu, "silu": F.silu}


def run(x: Tensor, w: Tensor, bias: Tensor, scale: Tensor, *, activation: str) -> Tensor:
    z = ACTIVATIONS[activation](linear_rows(x, w, bias)).float() / scale
    # the conversion itself makes NaN of what is beyond the largest value
    return z.clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
