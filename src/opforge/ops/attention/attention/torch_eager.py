"""What PyTorch's scaled_dot_product_attention runs, with the log-sum-exp that its kernels make for autograd.

limits    matrix products, all scores in memory, where PyTorch has no kernel: with a softcap, with a mask on a GPU
"""

import math

import torch
from torch import Tensor

from opforge.device.torch.attention import attend_with_lse, seen_by

INACCURATE = "on a CPU (PyTorch 2.13) the log-sum-exp of 16-bit tensors is off by 3e-6: exponentials of 20 bits"


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
    if softcap <= 0 and q.numel() and k.shape[1]:
        found = attend_with_lse(q, k, v, scale, causal, window_left, window_right, alignment)
        if found is not None:
            return found
    group = q.shape[1] // k.shape[1] if k.shape[1] else 1
    scores = (q.float() @ k.float().repeat_interleave(group, dim=1).transpose(-1, -2)) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    seen = seen_by(q, k, causal, window_left, window_right, alignment)
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    lse = scores.logsumexp(dim=-1)
    weights = (scores - lse.masked_fill(lse == -math.inf, 0.0).unsqueeze(-1)).exp()
    return (weights @ v.float().repeat_interleave(group, dim=1)).to(q.dtype), lse
