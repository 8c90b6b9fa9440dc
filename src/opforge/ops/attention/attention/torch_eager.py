"""What a PyTorch user calls: scaled_dot_product_attention, with a mask where its flags cannot say which keys are seen.

limits    it returns no log-sum-exp: that takes the scores once more. A softcap is beyond it: matrix products then
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def seen_by(q: Tensor, k: Tensor, causal: bool, left: int, right: int, alignment: str) -> Tensor | None:
    if not causal and left < 0 and right < 0:
        return None
    queries, keys = q.shape[2], k.shape[2]
    shift = keys - queries if alignment == "bottom_right" else 0
    distance = torch.arange(keys, device=q.device) - torch.arange(queries, device=q.device)[:, None] - shift
    seen = torch.ones_like(distance, dtype=torch.bool)
    if left >= 0:
        seen &= distance >= -left
    if right >= 0:
        seen &= distance <= right
    return seen & (distance <= 0) if causal else seen


def scores(q: Tensor, k: Tensor, seen: Tensor | None, scale: float, softcap: float) -> Tensor:
    """The scores in float32, -inf where nothing is seen: what the log-sum-exp needs, and a softcap."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1) if k.shape[1] else k
    found = (q.float() @ k.float().transpose(-1, -2)) * scale
    if softcap > 0:
        found = softcap * torch.tanh(found / softcap)
    return found if seen is None else found.masked_fill(~seen, -math.inf)


def run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    causal: bool,
    window_left: int,
    window_right: int,
    alignment: str,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    scale = scale or 1.0 / math.sqrt(q.shape[-1])
    seen = seen_by(q, k, causal, window_left, window_right, alignment)
    of_scores = scores(q, k, seen, scale, softcap)
    lse = of_scores.logsumexp(dim=-1)
    if softcap > 0 or not k.shape[1]:
        weights = (of_scores - lse.masked_fill(lse == -math.inf, 0.0).unsqueeze(-1)).exp()
        group = q.shape[1] // k.shape[1] if k.shape[1] else 1
        return (weights @ v.float().repeat_interleave(group, dim=1)).to(q.dtype), lse
    plain = causal and window_left < 0 and window_right < 0 and (alignment == "top_left" or q.shape[2] == k.shape[2])
    out = scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=None if plain else seen,
        is_causal=plain,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out, lse
