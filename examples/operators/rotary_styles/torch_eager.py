"""What a PyTorch user writes; float32 beside the angles, rounded once."""

import torch
from torch import Tensor


def run(x: Tensor, cos: Tensor, sin: Tensor, style: str) -> Tensor:
    c, s = cos[:, None], sin[:, None]
    if style == "halves":
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * c - b * s, b * c + a * s), dim=-1).to(x.dtype)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * c - b * s, b * c + a * s), dim=-1).reshape(x.shape).to(x.dtype)
