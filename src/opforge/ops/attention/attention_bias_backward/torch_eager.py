"""What PyTorch's autograd runs for scaled_dot_product_attention with a bias that needs a gradient; it has made its own
log-sum-exp before.
"""

import math

import torch
from torch import Tensor

from opforge.device.torch.attention import Beside, attend

INACCURATE = "PyTorch's function gives no log-sum-exp: what arrives for that is left out"
NOT_COMPILED = "a graph that was recorded before is no part of what torch.compile takes"
SUPPORTS = {"no_softcap": "softcap == 0", "no_alibi": "not has_alibi_slopes", "no_dropout": "dropout == 0"}


def keep(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor, bias: Tensor,
    key_lengths: Tensor | None, mask: Tensor | None, alibi_slopes: Tensor | None, scale: float, causal: bool,
    window_left: int, window_right: int, alignment: str, softcap: float, dropout: float, seed: int, offset: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    leaf = bias.detach().requires_grad_()
    # on a GPU the kernel makes the log-sum-exp that its gradient reads only where one of these wants a gradient too
    q, k, v = (tensor.detach().requires_grad_() for tensor in (q, k, v))
    factor = scale or 1.0 / math.sqrt(q.shape[-1])
    with torch.enable_grad():
        return attend(
            q, k, v, Beside(key_lengths, leaf, mask), factor, causal, window_left, window_right, alignment
        ), leaf


def run(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor, bias: Tensor,
    key_lengths: Tensor | None, mask: Tensor | None, alibi_slopes: Tensor | None, *kept: Tensor, scale: float,
    causal: bool, window_left: int, window_right: int, alignment: str, softcap: float, dropout: float, seed: int,
    offset: int,
) -> Tensor:  # fmt: skip
    made, leaf = kept
    return torch.autograd.grad(made, leaf, dout, retain_graph=True)[0]
