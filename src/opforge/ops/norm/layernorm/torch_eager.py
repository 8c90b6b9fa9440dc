"""PyTorch's own layer norm, the baseline."""

from torch import Tensor
from torch.nn.functional import layer_norm


def run(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return layer_norm(x, (x.shape[-1],), weight, bias, eps)
