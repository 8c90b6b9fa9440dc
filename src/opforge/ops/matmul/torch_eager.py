"""PyTorch's own matmul, the baseline."""

from torch import Tensor, matmul

from opforge.primitives.torch_precision import products_in


def run(a: Tensor, b: Tensor, *, precision: str) -> Tensor:
    return products_in(precision, matmul, a, b)
