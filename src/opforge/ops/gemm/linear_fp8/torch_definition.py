"""PyTorch's own linear layer, in float32 where float16 would leave its range before the result is scaled."""

import torch
import torch.nn.functional as F
from torch import Tensor

from opforge.device.torch.linear import linear_rows

ACTIVATIONS = {"none": lambda z: z, "relu": F.relu, "gelu": F.gelu, "silu": F.silu}


def run(x: Tensor, w: Tensor, bias: Tensor, scale: Tensor, *, activation: str) -> Tensor:
    if x.dtype == torch.float16:
        x, w, bias = x.float(), w.float(), bias.float()
    z = ACTIVATIONS[activation](linear_rows(x, w, bias)).float() / scale
    # an infinity times 0 is NaN, and conversions of infinities differ from one PyTorch to another
    return (z.clamp(-448.0, 448.0) + z * 0).to(torch.float8_e4m3fn)
