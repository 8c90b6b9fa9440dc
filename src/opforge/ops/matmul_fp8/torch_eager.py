"""PyTorch's scaled product where a GPU has one for the scales and sizes; elsewhere the operands are widened first. The baseline."""

import torch
from torch import Tensor


def run(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
    (m, k), n = a.shape, b.shape[0]
    whole_or_rows = scale_a.shape[1] == 1 and (scale_a.numel() == 1) == (scale_b.numel() == 1)
    lined_up = k % 16 == 0 and n % 16 == 0 and k > 0 and a.is_contiguous() and b.is_contiguous() and a.data_ptr() % 16 == 0 and b.data_ptr() % 16 == 0
    if a.is_cuda and lined_up and whole_or_rows and a.dtype == torch.float8_e4m3fn:
        return torch._scaled_mm(a, b.T, scale_a=scale_a.contiguous(), scale_b=scale_b.T.contiguous(), out_dtype=torch.bfloat16)
    return (wide(a, scale_a) @ wide(b, scale_b).T).to(torch.bfloat16)


def wide(matrix: Tensor, scale: Tensor) -> Tensor:
    """The matrix in float32, scaled."""
    rows, terms = matrix.shape
    per_row = scale if scale.shape[0] in (1, rows) else scale.repeat_interleave(128, dim=0)[:rows]
    return matrix.float() * (per_row if scale.shape[1] in (1, terms) else per_row.repeat_interleave(128, dim=1)[:, :terms])
