"""PyTorch's own attention, as scaled_dot_product_attention picks it: flash attention on a CPU and on a GPU."""

import math

import torch
from torch import Tensor

SUPPORTS = {
    "no_window": "window_left < 0 and window_right < 0",
    "no_cap": "softcap == 0",
    "one_width": "d == dv and d <= 256 and d % 8 == 0",
    "one_diagonal": "not causal or nq == nk",
    "not_empty": "batch * heads * group * nq * nk > 0",
    "no_groups_on_a_cpu": "group == 1",
}
LAYOUTS = ("contiguous", "rows")
INACCURATE = "on a CPU exponentials of 16-bit scores have 20 bits: the logarithms are off by up to 5e-5 (PyTorch 2.13)"


def run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    causal: bool,
    align: str,
    window_left: int,
    window_right: int,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    factor = scale or 1 / math.sqrt(q.shape[-1])
    if not q.is_cuda:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=factor)[:2]
    if q.dtype == torch.float32:
        return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal, scale=factor)[
            :2
        ]
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=factor)[:2]
