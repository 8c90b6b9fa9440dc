"""PyTorch's own convolution, the baseline: oneDNN on a CPU, cuDNN on an NVIDIA GPU."""

from torch import Tensor

from opforge.device.torch.conv import conv2d_in

INACCURATE = (
    "on a CPU with AMX (PyTorch 2.13, oneDNN) an odd number of bfloat16 channels is made even with weights of 0: an "
    "infinity becomes NaN one column beside what reads it"
)


def run(x: Tensor, w: Tensor, bias: Tensor | None, *, precision: str, **steps: int) -> Tensor:
    return conv2d_in(precision, x, w, bias, steps)
