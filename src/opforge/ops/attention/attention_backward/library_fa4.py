"""FlashAttention-4's gradients (CuTe DSL) by autograd through its own function, the log-sum-exp's included.

limits    those of its forward pass: see attention/library_fa4
"""

import torch
from flash_attn.cute.interface import flash_attn_func
from torch import Tensor

NEEDS = "flash-attn-4==4.0.0b36"
DTYPES = ("float16", "bfloat16")
INACCURATE = (
    "it takes its own out and log-sum-exp for those that are given; on an H200 dq was beyond the bound in one_past "
    "(float16) and in odd (bfloat16)"
)
SUPPORTS = {
    "nothing_beside": "not (has_key_lengths or has_bias or has_mask or has_alibi_slopes or has_sinks)",
    "no_dropout": "dropout == 0",
    "no_softcap": "softcap == 0",
    "largest_score_is_largest_product": "scale >= 0",
    "rows_it_copies": "head_dim % 8 == 0 and value_dim % 8 == 0 and head_dim <= 256 and value_dim <= 256",
    "last_query_at_last_key": "queries == keys or alignment == 'bottom_right' or not (causal or window_left >= 0 or "
    "window_right >= 0)",
}


def keep(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor, key_lengths: Tensor | None,
    bias: Tensor | None, mask: Tensor | None, alibi_slopes: Tensor | None, sinks: Tensor | None, scale: float,
    causal: bool, window_left: int, window_right: int, alignment: str, softcap: float, dropout: float, seed: int,
    offset: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    with torch.enable_grad():
        made, sums = flash_attn_func(
            *(leaf.transpose(1, 2) for leaf in leaves),
            softmax_scale=scale or None,
            causal=causal,
            window_size=(window_left if window_left >= 0 else None, window_right if window_right >= 0 else None),
            return_lse=True,
        )
        return made.transpose(1, 2), sums, *leaves


def run(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor, key_lengths: Tensor | None,
    bias: Tensor | None, mask: Tensor | None, alibi_slopes: Tensor | None, sinks: Tensor | None, *kept: Tensor,
    scale: float, causal: bool, window_left: int, window_right: int, alignment: str, softcap: float, dropout: float,
    seed: int, offset: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    made, sums, *leaves = kept
    return torch.autograd.grad((made, sums), leaves, (dout, dlse), retain_graph=True)
