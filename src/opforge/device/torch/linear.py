"""PyTorch's linear layer, as the baselines of linear operators call it."""

from math import prod

from torch import Tensor
from torch.nn.functional import linear


def linear_rows(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    """x @ w^T + bias with the rows of x (..., k) as one matrix.

    PyTorch's CUDA path (2.11) rounds the product before it adds the bias where there is one row or one column: those go
    by way of float32.
    """
    rows, kind = x.reshape(prod(x.shape[:-1]), x.shape[-1]), x.dtype
    if x.is_cuda and 1 in (rows.shape[0], w.shape[0]):
        rows, w, bias = rows.float(), w.float(), bias.float()
    return linear(rows, w, bias).to(kind).reshape(*x.shape[:-1], w.shape[0])
