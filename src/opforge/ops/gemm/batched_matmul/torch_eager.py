"""PyTorch's own batched product; the baseline."""

import math
from functools import partial

import torch
from torch import Tensor

from opforge.device.torch.precision import products_in


def run(a: Tensor, b: Tensor, c: Tensor, *, alpha: float, beta: float, precision: str) -> Tensor:
    if beta == 0:
        product = products_in(precision, torch.matmul, a, b)
        return product if alpha == 1 else product * alpha
    m, k, n = *a.shape[-2:], b.shape[-1]
    batch = math.prod(c.shape[:-2])
    accumulate = partial(torch.baddbmm, c.reshape(batch, m, n), alpha=alpha, beta=beta)
    return products_in(precision, accumulate, a.reshape(batch, m, k), b.reshape(batch, k, n)).reshape(c.shape)
