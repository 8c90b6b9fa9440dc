"""PyTorch's scaled product where a GPU has one for the format and sizes; elsewhere the operands are widened first. The baseline."""

import torch
from torch import Tensor


def run(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
    k, n = a.shape[1], b.shape[0]
    lined_up = k % 16 == 0 and n % 16 == 0 and k > 0 and all(matrix.is_contiguous() and matrix.data_ptr() % 16 == 0 for matrix in (a, b))
    if a.is_cuda and lined_up and a.dtype == torch.float8_e4m3fn:
        rows, columns = scale_a.contiguous()[:, None], scale_b.contiguous()[None, :]
        return torch._scaled_mm(a, b.T, scale_a=rows, scale_b=columns, out_dtype=torch.bfloat16)
    return ((a.float() * scale_a[:, None]) @ (b.float() * scale_b[:, None]).T).to(torch.bfloat16)
