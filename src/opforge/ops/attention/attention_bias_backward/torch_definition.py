"""The definition in tensor operations: scores, weights and slopes, each a pass over memory, in float32."""

import math

import torch
from torch import Tensor

from opforge.device.torch.attention import distances
from opforge.device.torch.attention_dropout import keep_factor


def run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    dlse: Tensor,
    bias: Tensor,
    key_lengths: Tensor | None,
    mask: Tensor | None,
    alibi_slopes: Tensor | None,
    scale: float,
    causal: bool,
    window_left: int,
    window_right: int,
    alignment: str,
    softcap: float,
    dropout: float,
    seed: int,
    offset: int,
) -> Tensor:
    group, keys = q.shape[1] // max(1, k.shape[1]), k.shape[2]
    wide_k, wide_v = (tensor.float().repeat_interleave(group, dim=1) for tensor in (k, v))
    scores = (q.float() @ wide_k.transpose(-1, -2)) * (scale or 1 / math.sqrt(q.shape[-1]))
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores + bias
    if alibi_slopes is not None:
        scores = scores - alibi_slopes[:, None, None] * distances(q, k, alignment).abs()
    # a row that sees nothing has no weights
    weights = torch.exp(scores - lse.masked_fill(lse == -math.inf, math.inf).unsqueeze(-1))
    right = 0 if causal else window_right
    if right >= 0 or window_left >= 0:
        distance = distances(q, k, alignment)
        hidden = (distance > right) & (right >= 0) | (distance < -window_left) & (window_left >= 0)
        weights = weights.masked_fill(hidden, 0.0)
    if key_lengths is not None:
        places = torch.arange(keys, device=q.device)
        weights = weights.masked_fill(places >= key_lengths[:, None, None, None], 0.0)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)
    arriving = dout.float()
    middle = (arriving * out.float()).sum(dim=-1) - dlse
    inner = arriving @ wide_v.transpose(-1, -2)
    if dropout:
        inner = inner * keep_factor(q, k, dropout, seed, offset)
    return (weights * (inner - middle.unsqueeze(-1))).to(bias.dtype)
