"""The definition in tensor operations: one sequence after another, scores, weights and slopes in float32.

limits    offsets are read on the host: a GPU is waited for
"""

import math

import torch
from torch import Tensor

from opforge.device.torch.attention import Beside, seen_by
from opforge.device.torch.attention_varlen import ends_of

NOT_COMPILED = "offsets are read on the host: a loop over sequences of sizes that only they tell"


def run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    dlse: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    scale: float,
    causal: bool,
    window_left: int,
    window_right: int,
    alignment: str,
    softcap: float,
) -> tuple[Tensor, Tensor, Tensor]:
    factor = scale or 1.0 / math.sqrt(q.shape[-1])
    heads = k.shape[1]
    dq, dk, dv = (torch.zeros_like(tensor, memory_format=torch.contiguous_format) for tensor in (q, k, v))
    q_ends = ends_of("cu_seqlens_q", cu_seqlens_q, q.shape[0])
    k_ends = ends_of("cu_seqlens_k", cu_seqlens_k, k.shape[0])
    for place in range(len(q_ends) - 1):
        rows, columns = slice(q_ends[place], q_ends[place + 1]), slice(k_ends[place], k_ends[place + 1])
        if rows.stop == rows.start or columns.stop == columns.start or not heads:
            continue
        mine, arriving, result = (tensor[rows].transpose(0, 1)[None].float() for tensor in (q, dout, out))
        keys, values = (
            tensor[columns].transpose(0, 1)[None].float().repeat_interleave(q.shape[1] // heads, dim=1)
            for tensor in (k, v)
        )
        scores = (mine @ keys.transpose(-1, -2)) * factor
        bent = torch.tanh(scores / softcap) if softcap > 0 else scores
        scores = softcap * bent if softcap > 0 else scores
        level = lse[None, :, rows, None]
        weights = torch.exp(scores - level.masked_fill(level == -math.inf, math.inf))
        seen = seen_by(mine, keys, Beside(), causal, window_left, window_right, alignment)
        weights = weights if seen is None else weights.masked_fill(~seen, 0.0)
        middle = (arriving * result).sum(dim=-1) - dlse[None, :, rows]
        slopes = weights * (arriving @ values.transpose(-1, -2) - middle.unsqueeze(-1))
        if softcap > 0:
            slopes = slopes * (1 - bent * bent)
        of_keys = (factor * (slopes.transpose(-1, -2) @ mine)).unflatten(1, (heads, -1)).sum(dim=2)
        of_values = (weights.transpose(-1, -2) @ arriving).unflatten(1, (heads, -1)).sum(dim=2)
        dq[rows] = (factor * (slopes @ keys))[0].transpose(0, 1).to(q.dtype)
        dk[columns], dv[columns] = (
            part[0].transpose(0, 1).to(whole.dtype) for part, whole in ((of_keys, dk), (of_values, dv))
        )
    return dq, dk, dv
