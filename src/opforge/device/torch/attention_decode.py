"""A paged cache in tensor operations: pages gathered into contiguous keys and values, who sees which of them, and
attention by its quotient, which packed sequences share.
"""

import math

import torch
from torch import Tensor


def gather(pages: Tensor, block_table: Tensor, lengths: Tensor) -> Tensor:
    """Keys or values [batch, kv_heads, max_pages * page, dim] out of pages [pages, page, kv_heads, dim]; page 0 and
    zeros, in this order, where the table isn't read and behind the last key."""
    page = pages.shape[1]
    columns = torch.arange(block_table.shape[1], device=pages.device) * page
    known = block_table.masked_fill((columns >= lengths[:, None]), 0).clamp(0, pages.shape[0] - 1)
    keys = pages[known.long()].flatten(1, 2)
    inside = torch.arange(keys.shape[1], device=pages.device) < lengths[:, None]
    return keys.masked_fill(~inside[:, :, None, None], 0).transpose(1, 2)


def lost_of(block_table: Tensor, lengths: Tensor, pages: Tensor, queries: int, window_left: int) -> Tensor:
    """Which sequences [batch] have a length that their row of the table has no room for, or are seen to have a page
    that isn't there. On the host, outside of torch.compile, raises ValueError for the first of them.
    """
    page, room = pages.shape[1], block_table.shape[1] * pages.shape[1]
    starts = torch.arange(block_table.shape[1], device=lengths.device) * page
    length = lengths[:, None]
    read = starts < length
    if window_left >= 0:
        read = read & (starts + page > length - queries - window_left)
    strange = (read & ((block_table < 0) | (block_table >= pages.shape[0]))).any(dim=1)
    lost = strange | (lengths < 0) | (lengths > room)
    if lengths.is_cpu and not torch.compiler.is_compiling() and bool(lost.any()):
        b = int(lost.nonzero()[0])
        raise ValueError(
            f"sequence {b} has {int(lengths[b])} keys in pages {block_table[b].tolist()}; a row of block_table has "
            f"room for {room} keys, and there are {pages.shape[0]} pages"
        )
    return lost


def seen_by_the_last(lengths: Tensor, queries: int, keys: int, window_left: int) -> Tensor:
    """Which of `keys` keys the last queries of each sequence see, [batch, queries, keys] of bool."""
    places = lengths[:, None] - queries + torch.arange(queries, device=lengths.device)
    distance = torch.arange(keys, device=lengths.device) - places[:, :, None]
    seen = distance <= 0
    return seen & (distance >= -window_left) if window_left >= 0 else seen


def by_quotient(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, scale: float, softcap: float
) -> tuple[Tensor, Tensor]:
    """Attention of tensors [batch, heads, rows, dim], and its log-sum-exp, by matrix products in float32.

    Weights are divided by their own sum. Those made of a log-sum-exp carry its last digit as a factor, which is large
    where scores are.
    """
    scores = (q.float() @ k.float().transpose(-1, -2)) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    top = scores.amax(dim=-1, keepdim=True)
    weights = (scores - top.masked_fill(top == -math.inf, 0.0)).exp()
    total = weights.sum(dim=-1, keepdim=True)
    out = (weights @ v.float()) / total.masked_fill(total == 0, 1.0)
    return out.to(q.dtype), (top + total.log()).squeeze(-1)
