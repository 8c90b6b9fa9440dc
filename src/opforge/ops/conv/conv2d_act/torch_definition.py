"""PyTorch's own convolution of float32, whatever the dtype, then the residual and the activation: one rounding at the
end.

Where 16 bits are multiplied oneDNN makes an odd number of channels even, and an infinity becomes NaN beside its place.
"""

import torch.nn.functional as F
from torch import Tensor

from opforge.device.torch.conv import conv2d_in


def run(
    x: Tensor, w: Tensor, bias: Tensor | None, residual: Tensor | None, *, activation: str, precision: str, **steps: int
) -> Tensor:
    z = conv2d_in(precision, x.float(), w.float(), None if bias is None else bias.float(), steps)
    if residual is not None:
        z = z + residual.float()
    if activation == "relu":
        z = F.relu(z)
    elif activation == "gelu":
        z = F.gelu(z)
    elif activation == "silu":
        z = F.silu(z)
    return z.to(x.dtype)
