"""The definition in tensor operations: scores, weights and sums, each a pass over memory, in float32."""

import math

from torch import Tensor

from opforge.device.torch.attention import Beside, by_products


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
    factor = scale or 1.0 / math.sqrt(q.shape[-1])
    return by_products(q, k, v, beside, factor, causal, window_left, window_right, alignment, softcap)
