"""FlashAttention-4 (CuTe DSL) by its own function: on Hopper wgmma and TMA, two or three warpgroups that multiply.

limits    it aligns causal masks and windows to the last key, and takes 16 bits. Padding is another function of its
          (packed sequences); sinks and score_mod are left out here
"""

from flash_attn.cute.interface import flash_attn_func
from torch import Tensor

NEEDS = "flash-attn-4==4.0.0b36"
DTYPES = ("float16", "bfloat16")
SUPPORTS = {
    "nothing_beside": "not (has_key_lengths or has_bias or has_mask or has_alibi_slopes or has_sinks)",
    "no_dropout": "dropout == 0",
    "largest_score_is_largest_product": "scale >= 0",
    "rows_it_copies": "head_dim % 8 == 0 and value_dim % 8 == 0 and head_dim <= 256 and value_dim <= 256",
    "last_query_at_last_key": "queries == keys or alignment == 'bottom_right' or not (causal or window_left >= 0 or "
    "window_right >= 0)",
}


def run(
    q: Tensor, k: Tensor, v: Tensor, key_lengths: Tensor | None, bias: Tensor | None, mask: Tensor | None,
    alibi_slopes: Tensor | None, sinks: Tensor | None, scale: float, causal: bool, window_left: int, window_right: int,
    alignment: str, softcap: float, dropout: float, seed: int, offset: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    out, lse = flash_attn_func(
        *(tensor.transpose(1, 2) for tensor in (q, k, v)),
        softmax_scale=scale or None,
        causal=causal,
        window_size=(window_left if window_left >= 0 else None, window_right if window_right >= 0 else None),
        softcap=softcap,
        return_lse=True,
    )
    return out.transpose(1, 2), lse
