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
    align: str,
    window_left: int,
    window_right: int,
    softcap: float,
) -> tuple[Tensor, Tensor, Tensor]:
    heads, group = k.shape[1], q.shape[1] // max(1, k.shape[1])
    nq, nk = q.shape[2], k.shape[2]
    factor = scale or 1 / math.sqrt(max(q.shape[-1], 1))
    keys, values = (tensor.float().repeat_interleave(group, dim=1) for tensor in (k, v))
    queries, arriving = q.float(), dout.float()
    scores = (queries @ keys.transpose(-1, -2)) * factor
    capped = torch.tanh(scores / softcap) if softcap > 0 else scores
    scores = softcap * capped if softcap > 0 else scores
    weights = torch.exp(scores - lse.masked_fill(lse == -math.inf, math.inf)[..., None])
    right = 0 if causal else window_right
    if right >= 0 or window_left >= 0:
        place = torch.arange(nq, device=q.device)[:, None] + (nk - nq if align == "bottom_right" else 0)
        distance = torch.arange(nk, device=q.device)[None, :] - place
        hidden = (distance > right) & (right >= 0) | (distance < -window_left) & (window_left >= 0)
        weights = weights.masked_fill(hidden, 0.0)
    middle = (arriving * out.float()).sum(dim=-1) - dlse
    slopes = weights * (arriving @ values.transpose(-1, -2) - middle[..., None])
    if softcap > 0:
        slopes = slopes * (1 - capped * capped)
    dq = factor * (slopes @ keys)
    dk = (factor * (slopes.transpose(-1, -2) @ queries)).unflatten(1, (heads, group)).sum(dim=2)
    dv = (weights.transpose(-1, -2) @ arriving).unflatten(1, (heads, group)).sum(dim=2)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
