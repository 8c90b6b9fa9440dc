"""What PyTorch's scaled_dot_product_attention runs, with the log-sum-exp that its kernels make for autograd.

limits    matrix products, all scores in memory, where PyTorch has no kernel: with a softcap, ALiBi, sinks or dropout,
          with a mask on a GPU
"""

import math

from torch import Tensor

from opforge.device.torch.attention import Beside, attend_with_lse, by_products

INACCURATE = "on a CPU (PyTorch 2.13) the log-sum-exp of 16-bit tensors is off by 3e-6: exponentials of 20 bits"


def run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_lengths: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
    scale: float,
    causal: bool,
    window_left: int,
    window_right: int,
    alignment: str,
    softcap: float,
    dropout: float,
    seed: int,
    offset: int,
) -> tuple[Tensor, Tensor]:
    beside = Beside(key_lengths, bias, mask, alibi_slopes, sinks, dropout, seed, offset)
    scale = scale or 1.0 / math.sqrt(q.shape[-1])
    if softcap <= 0 and q.numel() and k.shape[1]:
        found = attend_with_lse(q, k, v, beside, scale, causal, window_left, window_right, alignment)
        if found is not None:
            return found
    return by_products(q, k, v, beside, scale, causal, window_left, window_right, alignment, softcap)
