"""PyTorch's own matmul with its sums in float32: cuBLAS keeps no parts of them in 16 bits."""

from functools import partial

from torch import Tensor, matmul

from opforge.device.torch.precision import products_in
from opforge.device.torch.sums import sums_in_float32


def run(a: Tensor, b: Tensor, *, precision: str) -> Tensor:
    return sums_in_float32(partial(products_in, precision, matmul), a, b)


def run_out(a: Tensor, b: Tensor, c: Tensor, *, precision: str) -> Tensor:
    return sums_in_float32(partial(products_in, precision, partial(matmul, out=c)), a, b)
