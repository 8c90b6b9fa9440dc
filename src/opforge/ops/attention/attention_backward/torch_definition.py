"""The definition in tensor operations: scores, weights and slopes, each a pass over memory, in float32."""

import math

import torch
from torch import Tensor


def run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    dlse: Tensor,
    scale: float,
    causal: bool,
    window_left: int,
    window_right: int,
    alignment: str,
    softcap: float,
) -> tuple[Tensor, Tensor, Tensor]:
    heads, group = k.shape[1], q.shape[1] // max(1, k.shape[1])
    queries, keys = q.shape[2], k.shape[2]
    factor = scale or 1 / math.sqrt(q.shape[-1])
    wide_k, wide_v = (tensor.float().repeat_interleave(group, dim=1) for tensor in (k, v))
    wide_q, arriving = q.float(), dout.float()
    scores = (wide_q @ wide_k.transpose(-1, -2)) * factor
    bent = torch.tanh(scores / softcap) if softcap > 0 else scores
    scores = softcap * bent if softcap > 0 else scores
    # a row that sees nothing has no weights
    weights = torch.exp(scores - lse.masked_fill(lse == -math.inf, math.inf).unsqueeze(-1))
    right = 0 if causal else window_right
    if right >= 0 or window_left >= 0:
        places = torch.arange(queries, device=q.device)[:, None] + (
            keys - queries if alignment == "bottom_right" else 0
        )
        distance = torch.arange(keys, device=q.device)[None, :] - places
        hidden = (distance > right) & (right >= 0) | (distance < -window_left) & (window_left >= 0)
        weights = weights.masked_fill(hidden, 0.0)
    middle = (arriving * out.float()).sum(dim=-1) - dlse
    slopes = weights * (arriving @ wide_v.transpose(-1, -2) - middle.unsqueeze(-1))
    if softcap > 0:
        slopes = slopes * (1 - bent * bent)
    dq = factor * (slopes @ wide_k)
    dk = (factor * (slopes.transpose(-1, -2) @ wide_q)).unflatten(1, (heads, group)).sum(dim=2)
    dv = (weights.transpose(-1, -2) @ arriving).unflatten(1, (heads, group)).sum(dim=2)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
