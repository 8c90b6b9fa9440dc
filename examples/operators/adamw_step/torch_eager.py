"""PyTorch's operations one by one, in place. What is overwritten is not returned."""

import torch
from torch import Tensor


def run(
    param: Tensor,
    grad: Tensor,
    m: Tensor,
    v: Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    step: int,
) -> None:
    g = grad.float()
    m.mul_(beta1).add_(g, alpha=1 - beta1)
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    root = (v / (1 - beta2**step)).sqrt_().add_(eps)
    moved = param.float() * (1 - lr * decay)
    param.copy_(torch.addcdiv(moved, m, root, value=-lr / (1 - beta1**step)))
