"""PyTorch's scaled product where a GPU has one for the formats, scales and sizes; elsewhere the operands are widened
first. The baseline.
"""

import torch
from torch import Tensor

BLOCK = 128


def widened(matrix: Tensor, scale: Tensor) -> Tensor:
    rows, terms = matrix.shape
    if 1 < scale.shape[0] < rows:
        scale = scale.repeat_interleave(BLOCK, dim=0)[:rows]
    if scale.shape[1] > 1:
        scale = scale.repeat_interleave(BLOCK, dim=1)[:, :terms]
    return matrix.float() * scale


def has_scaled_product(a: Tensor, b: Tensor, scaling: str, out_dtype: str) -> bool:
    """torch._scaled_mm takes no two E5M2 operands, and row-wise scales only with E4M3 operands and a bfloat16
    result.
    """
    k, n = a.shape[1], b.shape[0]
    lined_up = (
        k % 16 == 0
        and n % 16 == 0
        and k > 0
        and all(matrix.is_contiguous() and matrix.data_ptr() % 16 == 0 for matrix in (a, b))
    )
    formats = {a.dtype, b.dtype}
    if scaling == "row":
        return lined_up and formats == {torch.float8_e4m3fn} and out_dtype == "bfloat16"
    return lined_up and scaling == "tensor" and torch.float8_e4m3fn in formats


def at_a_vector(scale: Tensor) -> Tensor:
    """Contiguous, at a multiple of 16 bytes: cuBLAS takes no scale from another address (13.0, on an H200)."""
    scale = scale.contiguous()
    return scale if scale.data_ptr() % 16 == 0 else scale.clone()


def run(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, *, scaling: str, b_dtype: str, out_dtype: str
) -> Tensor:
    kind = getattr(torch, out_dtype)
    if a.is_cuda and has_scaled_product(a, b, scaling, out_dtype):
        return torch._scaled_mm(a, b.T, scale_a=at_a_vector(scale_a), scale_b=at_a_vector(scale_b).T, out_dtype=kind)
    return (widened(a, scale_a) @ widened(b, scale_b).T).to(kind)
