"""A paged cache in tensor operations: pages gathered into contiguous keys and values, and who sees which of them."""

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


def seen_by_the_last(lengths: Tensor, queries: int, keys: int, window_left: int) -> Tensor:
    """Which of `keys` keys the last queries of each sequence see, [batch, queries, keys] of bool."""
    places = lengths[:, None] - queries + torch.arange(queries, device=lengths.device)
    distance = torch.arange(keys, device=lengths.device) - places[:, :, None]
    seen = distance <= 0
    return seen & (distance >= -window_left) if window_left >= 0 else seen
