"""The definition in tensor operations: sequences of one length after those of another, their pages gathered, scores in
float32.

limits    lengths are read on the host: a GPU is waited for
"""

import math

import torch
from torch import Tensor

from opforge.device.torch.attention_decode import by_quotient, lost_of, seen_by_the_last

NOT_COMPILED = "lengths are read on the host: a loop over sequences of sizes that only they tell"

ELEMENTS = 1 << 24
"""Of keys and values gathered at a time."""


def run(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    scale: float,
    window_left: int,
    softcap: float,
    batch_invariant: bool,
) -> tuple[Tensor, Tensor]:
    page, (batch, heads, queries, dim) = k_pages.shape[1], q.shape
    kv_heads, width = v_pages.shape[2:]
    factor = scale or 1.0 / math.sqrt(dim)
    out = q.new_zeros((batch, heads, queries, width))
    lse = q.new_full((batch, heads, queries), -math.inf, dtype=torch.float32)
    if out.numel() and bool(lost_of(block_table, lengths, k_pages, queries, window_left).any()):
        raise ValueError("a length is beyond its row of block_table, or an entry that is seen names no page")
    # sequences of one length are computed together, as far as their keys are few
    numbers: dict[int, list[int]] = {}
    for number, length in enumerate(lengths.tolist()):
        numbers.setdefault(length, []).append(number)
    numbers.pop(0, None)
    group = heads // kv_heads if kv_heads else 1
    for length, alike in numbers.items() if out.numel() else ():
        first = max(0, length - queries - window_left) if window_left >= 0 else 0
        seen = seen_by_the_last(torch.tensor([length - first], device=q.device), queries, length - first, window_left)
        count = max(1, ELEMENTS // (length * kv_heads * (dim + width)))
        for start in range(0, len(alike), count):
            same = torch.tensor(alike[start : start + count], device=q.device)
            entries = block_table[same, first // page : -(-length // page)].long()
            skipped = first // page * page
            k, v = (
                pages[entries].flatten(1, 2)[:, first - skipped : length - skipped].transpose(1, 2)
                for pages in (k_pages, v_pages)
            )
            # heads of a group are rows of the keys that they share
            rows = q[same].reshape(len(same), kv_heads, group * queries, dim)
            found = by_quotient(rows, k, v, seen.repeat(1, group, 1)[:, None], factor, softcap)
            out[same] = found[0].view(len(same), heads, queries, width)
            lse[same] = found[1].view(len(same), heads, queries)
    return out, lse
