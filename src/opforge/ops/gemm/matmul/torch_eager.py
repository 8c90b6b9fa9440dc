"""PyTorch's own matmul, the baseline."""

from functools import partial

from torch import Tensor, matmul

from opforge.device.torch.precision import products_in


def run(a: Tensor, b: Tensor, *, precision: str) -> Tensor:
    return products_in(precision, matmul, a, b)


def run_out(a: Tensor, b: Tensor, c: Tensor, *, precision: str) -> Tensor:
    return products_in(precision, partial(matmul, out=c), a, b)
