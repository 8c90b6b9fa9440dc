"""The definition in tensor operations: what the FP8 tensors stand for, then scores, weights and sums in float32."""

import math

import torch
from torch import Tensor

from opforge.device.torch.attention import Beside, by_products


def run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    key_lengths: Tensor | None,
    scale: float,
    causal: bool,
    window_left: int,
    window_right: int,
    alignment: str,
    softcap: float,
    q_block: int,
    k_block: int,
    v_channels: bool,
    out_dtype: str,
) -> tuple[Tensor, Tensor]:
    def by_rows(rows: Tensor, scales: Tensor, shared: int) -> Tensor:
        if shared:
            scales = scales.repeat_interleave(shared, dim=2)[:, :, : rows.shape[2]]
        return rows.float() * scales[..., None]

    q, k = by_rows(q, q_scale, q_block), by_rows(k, k_scale, k_block)
    v = v.float() * v_scale[..., None, :]
    factor = scale or 1.0 / math.sqrt(q.shape[-1])
    out, lse = by_products(q, k, v, Beside(key_lengths), factor, causal, window_left, window_right, alignment, softcap)
    return out.to(getattr(torch, out_dtype)), lse
