"""PyTorch's operations over lists, one launch for many parameters. What is overwritten is not returned."""

import torch
from torch import Tensor


def run(
    params: list[Tensor],
    grads: list[Tensor],
    ms: list[Tensor],
    vs: list[Tensor],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    step: int,
) -> None:
    wide = [grad.float() for grad in grads]
    torch._foreach_lerp_(ms, wide, 1 - beta1)
    torch._foreach_mul_(vs, beta2)
    torch._foreach_addcmul_(vs, wide, wide, value=1 - beta2)
    roots = torch._foreach_sqrt(torch._foreach_div(vs, 1 - beta2**step))
    torch._foreach_add_(roots, eps)
    moved = torch._foreach_mul([param.float() for param in params], 1 - lr * decay)
    torch._foreach_addcdiv_(moved, ms, roots, value=-lr / (1 - beta1**step))
    torch._foreach_copy_(params, moved)
