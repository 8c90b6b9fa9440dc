"""PyTorch's own convolution of float32, whatever the dtype: one rounding at the end.

Where 16 bits are multiplied oneDNN makes an odd number of channels even, and an infinity becomes NaN beside its place.
"""

from torch import Tensor

from opforge.device.torch.conv import conv2d_in


def run(x: Tensor, w: Tensor, bias: Tensor | None, *, precision: str, **steps: int) -> Tensor:
    wide = None if bias is None else bias.float()
    return conv2d_in(precision, x.float(), w.float(), wide, steps).to(x.dtype)
