"""The definition in tensor operations: scores, softmax and values, each a pass over memory, in float32."""

import math

import torch
from torch import Tensor


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
    group = q.shape[1] // max(1, k.shape[1])
    nq, nk = q.shape[2], k.shape[2]
    k, v = (tensor.repeat_interleave(group, dim=1) for tensor in (k, v))
    scores = (q.float() @ k.float().transpose(-1, -2)) * (scale or 1 / math.sqrt(max(q.shape[-1], 1)))
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    right = 0 if causal else window_right
    if right >= 0 or window_left >= 0:
        place = torch.arange(nq, device=q.device)[:, None] + (nk - nq if align == "bottom_right" else 0)
        distance = torch.arange(nk, device=q.device)[None, :] - place
        hidden = (distance > right) & (right >= 0) | (distance < -window_left) & (window_left >= 0)
        scores = scores.masked_fill(hidden, -math.inf)
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse.masked_fill(lse == -math.inf, 0.0)[..., None])
    return (weights @ v.float()).to(q.dtype), lse
