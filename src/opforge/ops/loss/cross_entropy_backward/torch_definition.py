"""softmax in float32, weighted, and the right class taken off: PyTorch's own backward keeps log_softmax in the dtype of
x, which
loses |log p| / 512 of each result in bfloat16 and is no right answer here."""

import math

import torch
from torch import Tensor


def run(x: Tensor, target: Tensor, dloss: Tensor, ignore_index: int, label_smoothing: float) -> Tensor:
    counted = target != ignore_index
    # no class has such an index: there is no answer
    strange = ((target < 0) | (target >= x.shape[-1])) & counted
    weight = dloss.float().where(counted, 0.0).unsqueeze(-1)
    dx = torch.softmax(x, dim=-1, dtype=torch.float32)
    if label_smoothing:
        dx = dx - label_smoothing / x.shape[-1]
    # a row that is ignored is 0 even where softmax is NaN
    dx = (dx * weight).where(counted.unsqueeze(-1), 0.0)
    picked = target.where(counted & ~strange, 0).unsqueeze(-1)
    dx = dx.scatter_add(-1, picked, weight * (label_smoothing - 1.0))
    return dx.masked_fill(strange.unsqueeze(-1), math.nan).to(x.dtype)
