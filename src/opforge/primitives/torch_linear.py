"""PyTorch's linear layer, as the baselines of linear operators call it."""

from math import prod

from torch import Tensor
from torch.nn.functional import linear


def linear_rows(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    """x @ w^T + bias with the rows of x (..., k) as one matrix: given a single vector, PyTorch's CUDA path (2.11) rounds the product before it adds the bias."""
    return linear(x.reshape(prod(x.shape[:-1]), x.shape[-1]), w, bias).reshape(*x.shape[:-1], w.shape[0])
