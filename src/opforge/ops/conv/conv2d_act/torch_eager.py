"""PyTorch's own convolution with its bias, then the residual and the activation in passes of their own."""

import torch.nn.functional as F
from torch import Tensor

from opforge.device.torch.conv import conv2d_in

INACCURATE = (
    "on a CPU with AMX (PyTorch 2.13, oneDNN) an odd number of bfloat16 channels is made even with weights of 0: an "
    "infinity becomes NaN one column beside what reads it"
)


def run(
    x: Tensor, w: Tensor, bias: Tensor | None, residual: Tensor | None, *, activation: str, precision: str, **steps: int
) -> Tensor:
    z = conv2d_in(precision, x, w, bias, steps)
    if residual is not None:
        z = z + residual
    if activation == "relu":
        return F.relu(z)
    if activation == "gelu":
        return F.gelu(z)
    if activation == "silu":
        return F.silu(z)
    return z
