"""scaled_dot_product_attention as a PyTorch user calls it: flags where they can say what is seen, else a mask; and what
it runs, with the log-sum-exp.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from opforge.device.torch.attention_dropout import keep_factor


class Beside(NamedTuple):
    """What attention is given beside queries, keys and values."""

    key_lengths: Tensor | None = None
    bias: Tensor | None = None
    mask: Tensor | None = None
    alibi_slopes: Tensor | None = None
    sinks: Tensor | None = None
    dropout: float = 0.0
    seed: int = 0
    offset: int = 0

    @property
    def masks_alone(self) -> bool:
        """Whether a mask says all of it, exactly in the dtype of the queries."""
        return self.alibi_slopes is None and self.sinks is None and not self.dropout


def distances(q: Tensor, k: Tensor, alignment: str) -> Tensor:
    """How far each key lies after the position of each query, [queries, keys]."""
    queries, keys = q.shape[2], k.shape[2]
    shift = keys - queries if alignment == "bottom_right" else 0
    return torch.arange(keys, device=q.device) - torch.arange(queries, device=q.device)[:, None] - shift


def seen_by(
    q: Tensor, k: Tensor, beside: Beside, causal: bool, left: int, right: int, alignment: str
) -> Tensor | None:  # fmt: skip
    """Which keys each query sees, bool of [queries, keys], or of four axes; None where each sees all."""
    seen = None if beside.mask is None else beside.mask
    if causal or left >= 0 or right >= 0:
        distance = distances(q, k, alignment)
        near = torch.ones_like(distance, dtype=torch.bool)
        if left >= 0:
            near &= distance >= -left
        if right >= 0:
            near &= distance <= right
        near = near & (distance <= 0) if causal else near
        seen = near if seen is None else seen & near
    if beside.key_lengths is not None:
        there = torch.arange(k.shape[2], device=q.device) < beside.key_lengths[:, None, None, None]
        seen = there.expand(-1, 1, q.shape[2], -1) if seen is None else seen & there
    return seen


def mask_of(
    q: Tensor, k: Tensor, beside: Beside, causal: bool, left: int, right: int, alignment: str
) -> Tensor | None:  # fmt: skip
    """The bias with -inf where a key is not seen; without a bias, which keys each query sees."""
    seen = seen_by(q, k, beside, causal, left, right, alignment)
    if beside.bias is None:
        return seen
    return beside.bias if seen is None else beside.bias.masked_fill(~seen, -math.inf)


def plainly(q: Tensor, k: Tensor, beside: Beside, causal: bool, left: int, right: int, alignment: str) -> bool:
    """Whether PyTorch's flag `is_causal` says what is seen: its first query stands at the first key."""
    alone = beside.key_lengths is None and beside.bias is None and beside.mask is None
    return alone and causal and left < 0 and right < 0 and (alignment == "top_left" or q.shape[2] == k.shape[2])


def attend(
    q: Tensor, k: Tensor, v: Tensor, beside: Beside, scale: float, causal: bool, left: int, right: int, alignment: str
) -> Tensor:  # fmt: skip
    """Attention of tensors [batch, heads, length, dim] by scaled_dot_product_attention."""
    plain = plainly(q, k, beside, causal, left, right, alignment)
    return scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=None if plain else mask_of(q, k, beside, causal, left, right, alignment),
        is_causal=plain,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )


def aligned(tensor: Tensor) -> Tensor:
    """Itself where all rows begin at whole 16-byte vectors, else a copy: there is no kernel for others."""
    vector = 16 // tensor.element_size()
    whole = tensor.stride(3) == 1 and all(stride % vector == 0 for stride in tensor.stride()[:3])
    return tensor if whole and tensor.data_ptr() % 16 == 0 else tensor.clone(memory_format=torch.contiguous_format)


FLASH, EFFICIENT, CUDNN = 1, 2, 3
"""What PyTorch calls its kernels for attention (torch.nn.attention.SDPBackend)."""


def attend_with_lse(
    q: Tensor, k: Tensor, v: Tensor, beside: Beside, scale: float, causal: bool, left: int, right: int, alignment: str
) -> tuple[Tensor, Tensor] | None:
    """What scaled_dot_product_attention runs here, with the log-sum-exp that its kernel makes for autograd; None where
    it takes matrix products, or a mask on a GPU, or no mask says all of what is given.
    """
    if not beside.masks_alone:
        return None
    plain = plainly(q, k, beside, causal, left, right, alignment)
    seen = None if plain else mask_of(q, k, beside, causal, left, right, alignment)
    if q.is_cuda and (seen is not None or scale < 0):
        # PyTorch 2.11's kernels for GPUs give NaN where the factor of the scores is negative
        return None
    aten, grouped = torch.ops.aten, q.shape[1] != k.shape[1]
    choice = int(aten._fused_sdp_choice(q, k, v, seen, 0.0, plain, scale=scale, enable_gqa=grouped))
    if choice == FLASH and not q.is_cuda:
        mask = seen
        if seen is not None and seen.dtype == torch.bool:
            mask = torch.zeros_like(seen, dtype=q.dtype).masked_fill_(~seen, -float("inf"))
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, plain, attn_mask=mask, scale=scale)
        # it gives 0 for the log-sum-exp of a query that sees nothing
        return out, lse if mask is None else lse.masked_fill((mask == -float("inf")).all(dim=-1), -float("inf"))
    if choice == FLASH and q.shape[-1] % 8 == 0:
        out, lse = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, plain, False, scale=scale)[:2]
    elif choice == CUDNN:
        out, lse = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, plain, False, scale=scale)[:2]
    elif choice == EFFICIENT:
        group = q.shape[1] // k.shape[1]
        k, v = (tensor.repeat_interleave(group, dim=1) if grouped else tensor for tensor in (k, v))
        q, k, v = (aligned(tensor) for tensor in (q, k, v))
        out, lse = aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, plain, scale=scale)[:2]
    else:
        return None
    # kernels may round the number of queries up, and keep an axis of one
    return out, lse.flatten(2)[..., : q.shape[2]]


def by_products(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beside: Beside,
    scale: float,
    causal: bool,
    left: int,
    right: int,
    alignment: str,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    """Attention and its log-sum-exp by matrix products in float32, all scores in memory."""
    group = q.shape[1] // k.shape[1] if k.shape[1] else 1
    scores = (q.float() @ k.float().repeat_interleave(group, dim=1).transpose(-1, -2)) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    if beside.bias is not None:
        scores = scores + beside.bias
    if beside.alibi_slopes is not None:
        scores = scores - beside.alibi_slopes[:, None, None] * distances(q, k, alignment).abs()
    seen = seen_by(q, k, beside, causal, left, right, alignment)
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    lse = scores.logsumexp(dim=-1)
    if beside.sinks is not None:
        lse = lse.logaddexp(beside.sinks[:, None])
    weights = (scores - lse.masked_fill(lse == -math.inf, 0.0).unsqueeze(-1)).exp()
    if beside.dropout:
        weights = weights * keep_factor(q, k, beside.dropout, beside.seed, beside.offset)
    return (weights @ v.float().repeat_interleave(group, dim=1)).to(q.dtype), lse
