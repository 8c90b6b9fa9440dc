"""PyTorch's own linear layer, then activation, scaling and conversion in passes of their own; the baseline."""

import torch
import torch.nn.functional as F
from torch import Tensor

from opforge.device.torch.linear import linear_rows

INACCURATE = "in float16 a result beyond 65504 is an infinity before it is scaled, and NaN afterwards"
ACTIVATIONS = {"none": lambda z: z, "relu": F.relu, "gelu": F.gelu, "silu": F.silu}


def run(x: Tensor, w: Tensor, bias: Tensor, scale: Tensor, *, activation: str) -> Tensor:
    z = ACTIVATIONS[activation](linear_rows(x, w, bias)).float() / scale
    # an infinity times 0 is NaN, and conversions of infinities differ from one PyTorch to another
    return (z.clamp(-448.0, 448.0) + z * 0).to(torch.float8_e4m3fn)
