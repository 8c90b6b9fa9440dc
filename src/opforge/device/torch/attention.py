"""scaled_dot_product_attention as a PyTorch user calls it: flags where they can say what is seen, else a mask."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def seen_by(q: Tensor, k: Tensor, causal: bool, left: int, right: int, alignment: str) -> Tensor | None:
    """Which keys each query sees, [queries, keys] of bool; None where each sees all."""
    if not causal and left < 0 and right < 0:
        return None
    queries, keys = q.shape[2], k.shape[2]
    shift = keys - queries if alignment == "bottom_right" else 0
    distance = torch.arange(keys, device=q.device) - torch.arange(queries, device=q.device)[:, None] - shift
    seen = torch.ones_like(distance, dtype=torch.bool)
    if left >= 0:
        seen &= distance >= -left
    if right >= 0:
        seen &= distance <= right
    return seen & (distance <= 0) if causal else seen


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, left: int, right: int, alignment: str,
    seen: Tensor | None,
) -> Tensor:  # fmt: skip
    """Attention of tensors [batch, heads, length, dim]; `seen` as seen_by gives it, used where no flag says it."""
    plain = causal and left < 0 and right < 0 and (alignment == "top_left" or q.shape[2] == k.shape[2])
    return scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=None if plain else seen,
        is_causal=plain,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
