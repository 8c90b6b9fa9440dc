"""What PyTorch's autograd runs for scaled_dot_product_attention, which has made its own log-sum-exp before."""

import math

import torch
from torch import Tensor

from opforge.device.torch.attention import Beside, attend

INACCURATE = "PyTorch's function gives no log-sum-exp: what arrives for that is left out"
NOT_COMPILED = "a graph that was recorded before is no part of what torch.compile takes"
SUPPORTS = {
    "no_softcap": "softcap == 0",
    "no_alibi": "not has_alibi_slopes",
    "no_sinks": "not has_sinks",
    "no_dropout": "dropout == 0",
}


def keep(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor, key_lengths: Tensor | None,
    bias: Tensor | None, mask: Tensor | None, alibi_slopes: Tensor | None, sinks: Tensor | None, scale: float,
    causal: bool, window_left: int, window_right: int, alignment: str, softcap: float, dropout: float, seed: int,
    offset: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    factor = scale or 1.0 / math.sqrt(q.shape[-1])
    with torch.enable_grad():
        return attend(
            *leaves, Beside(key_lengths, bias, mask), factor, causal, window_left, window_right, alignment
        ), *leaves


def run(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor, key_lengths: Tensor | None,
    bias: Tensor | None, mask: Tensor | None, alibi_slopes: Tensor | None, sinks: Tensor | None, *kept: Tensor,
    scale: float, causal: bool, window_left: int, window_right: int, alignment: str, softcap: float, dropout: float,
    seed: int, offset: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    made, *leaves = kept
    return torch.autograd.grad(made, leaves, dout, retain_graph=True)
