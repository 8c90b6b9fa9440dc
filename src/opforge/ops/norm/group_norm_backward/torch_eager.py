"""What PyTorch's autograd runs for group_norm, with the mean and the scale that the forward pass left."""

import torch
from torch import Tensor

INACCURATE = (
    "dweight is (sum of dy * x - mean * sum of dy) * scale, which cancels where the mean is far from 0; and on a CPU "
    "the forward pass leaves mean and scale in x's own dtype"
)


def keep(x: Tensor, weight: Tensor, dy: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    positions = x.shape[2:].numel()
    _, mean, scale = torch.ops.aten.native_group_norm(x, weight, weight, x.shape[0], x.shape[1], positions, groups, eps)
    return mean, scale


def run(
    x: Tensor, weight: Tensor, dy: Tensor, mean: Tensor, scale: Tensor, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_group_norm_backward(
        dy, x, mean, scale, weight, x.shape[0], x.shape[1], x.shape[2:].numel(), groups, [True, True, True]
    )
    return gradients
