"""One PyTorch call, faster than x * scale + shift, which are two."""

import torch
from torch import Tensor


def run(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    around = (1, -1, *(1,) * (x.ndim - 2))
    return torch.addcmul(shift.view(around), x, scale.view(around))


def run_out(x: Tensor, scale: Tensor, shift: Tensor, y: Tensor) -> Tensor:
    around = (1, -1, *(1,) * (x.ndim - 2))
    return torch.addcmul(shift.view(around), x, scale.view(around), out=y)
