"""What a user writes: the largest of each group, a division and a conversion."""

import torch
from torch import Tensor

BLOCK = 128
INACCURATE = "a group that holds an infinity or a NaN gets that for its scale, and loses all its other elements"


def run(x: Tensor, *, scaling: str, q_dtype: str) -> tuple[Tensor, Tensor]:
    kind = getattr(torch, q_dtype)
    (m, k), most = x.shape, torch.finfo(kind).max
    if scaling == "tensor":
        grouped = x.reshape(1, m, 1, k)
    elif scaling == "row":
        grouped = x.reshape(m, 1, 1, k)
    else:
        rows = 1 if scaling == "block" else BLOCK
        if m % rows or k % BLOCK:
            x = torch.nn.functional.pad(x, (0, -k % BLOCK, 0, -m % rows))
        grouped = x.reshape(x.shape[0] // rows, rows, x.shape[1] // BLOCK, BLOCK)
    if not x.numel():
        return x.to(kind), torch.full((grouped.shape[0], grouped.shape[2]), 2.0**-126, device=x.device)
    scale = (grouped.abs().amax(dim=(1, 3)).float() / most).clamp(min=2.0**-126)
    q = (grouped / scale[:, None, :, None]).to(kind).reshape(x.shape)
    return (q if x.shape == (m, k) else q[:m, :k].contiguous()), scale
