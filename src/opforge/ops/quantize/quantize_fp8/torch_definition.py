"""One reduction for the scales, a division and a conversion that PyTorch rounds to nearest even, whatever stands in a
group.
"""

import torch
from torch import Tensor

BLOCK = 128
LEAST = 2.0**-126


def run(x: Tensor, *, scaling: str, q_dtype: str) -> tuple[Tensor, Tensor]:
    m, k = x.shape
    rows = {"tensor": max(m, 1), "row": 1, "block": 1, "tile": BLOCK}[scaling]
    cols = max(k, 1) if scaling in ("tensor", "row") else BLOCK
    kind = getattr(torch, q_dtype)
    wide = x.float()
    down, right = (
        -m % rows if m else int(scaling == "tensor"),
        -k % cols if k else cols * (scaling in ("tensor", "row")),
    )
    grouped = torch.nn.functional.pad(wide, (0, right, 0, down)).view(
        (m + down) // rows, rows, (k + right) // cols, cols
    )
    scale = (grouped.abs().nan_to_num(nan=0.0, posinf=0.0).amax(dim=(1, 3)) / torch.finfo(kind).max).clamp(min=LEAST)
    kept = grouped.masked_fill(grouped.isinf(), float("nan")) / scale[:, None, :, None]
    return kept.to(kind).view(m + down, k + right)[:m, :k].contiguous(), scale
