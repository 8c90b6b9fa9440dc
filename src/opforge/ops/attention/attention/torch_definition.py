"""The definition in tensor operations: scores, weights and sums, each a pass over memory, in float32."""

import math

from torch import Tensor

from opforge.device.torch.attention import by_products


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
    factor = scale or 1.0 / math.sqrt(q.shape[-1])
    return by_products(q, k, v, factor, causal, window_left, window_right, alignment, softcap)
