"""PyTorch's own gradient of a convolution for its image, the baseline."""

from torch import Tensor

from opforge.device.torch.conv import conv2d_gradient


def run(x: Tensor, w: Tensor, dy: Tensor, *, precision: str, **steps: int) -> Tensor:
    return conv2d_gradient(precision, 0, x, w, dy, steps)
