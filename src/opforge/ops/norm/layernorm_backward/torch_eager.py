"""What PyTorch's autograd runs for layer_norm, with the mean and the scale that the forward pass left."""

import torch
from torch import Tensor

INACCURATE = (
    "on a CPU the forward pass leaves mean and scale in x's own dtype: with 16 bits the gradient is wrong "
    "in the third digit"
)


def keep(x: Tensor, weight: Tensor, dy: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    _, mean, scale = torch.ops.aten.native_layer_norm(x, [x.shape[-1]], weight, weight, eps)
    return mean, scale


def run(
    x: Tensor, weight: Tensor, dy: Tensor, mean: Tensor, scale: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_layer_norm_backward(
        dy, x, [x.shape[-1]], mean, scale, weight, weight, [True, True, True]
    )
    return gradients
