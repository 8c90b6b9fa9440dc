"""PyTorch's own RMS norm, the baseline."""

from torch import Tensor
from torch.nn.functional import rms_norm


def run(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return rms_norm(x, (x.shape[-1],), weight, eps)
