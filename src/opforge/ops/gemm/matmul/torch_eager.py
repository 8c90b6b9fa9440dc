"""PyTorch's own matmul, the baseline."""

from functools import partial

from torch import Tensor, matmul

from opforge.device.torch.precision import products_in

INACCURATE = (
    "on an NVIDIA H200 (PyTorch 2.11, cuBLAS 13.0) parts of a split sum of bfloat16 factors are rounded to bfloat16 "
    "before they are added (4 rows, k = 8192): torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction"
)


def run(a: Tensor, b: Tensor, *, precision: str) -> Tensor:
    return products_in(precision, matmul, a, b)


def run_out(a: Tensor, b: Tensor, c: Tensor, *, precision: str) -> Tensor:
    return products_in(precision, partial(matmul, out=c), a, b)
