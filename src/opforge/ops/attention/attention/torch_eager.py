"""What a PyTorch user calls: scaled_dot_product_attention, with a mask where its flags cannot say which keys are seen.

limits    it returns no log-sum-exp: that takes the scores once more. A softcap is beyond it: matrix products then
"""

import math

import torch
from torch import Tensor

from opforge.device.torch.attention import attend, seen_by


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
    return attend(q, k, v, scale, causal, window_left, window_right, alignment, seen), lse
