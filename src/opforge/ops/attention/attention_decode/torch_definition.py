"""The definition in tensor operations: one sequence after another, its pages gathered, scores in float32.

limits    lengths are read on the host: a GPU is waited for
"""

import math

import torch
from torch import Tensor

from opforge.device.torch.attention_decode import by_quotient, seen_by_the_last

NOT_COMPILED = "lengths are read on the host: a loop over sequences of sizes that only they tell"


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
    for number, length in enumerate(lengths.tolist()):
        if not length or not out.numel():
            continue
        first = max(0, length - queries - window_left) if window_left >= 0 else 0
        entries = block_table[number, first // page : -(-length // page)].long()
        k, v = (
            pages[entries].flatten(0, 1)[first % page : length - first // page * page].transpose(0, 1)[None]
            for pages in (k_pages, v_pages)
        )
        # heads of a group are rows of the keys that they share
        group = heads // kv_heads
        rows = q[number].reshape(1, kv_heads, group * queries, dim)
        seen = seen_by_the_last(torch.tensor([length - first], device=q.device), queries, length - first, window_left)
        found = by_quotient(rows, k, v, seen.repeat(1, group, 1)[:, None], factor, softcap)
        out[number], lse[number] = found[0].view(heads, queries, width), found[1].view(heads, queries)
    return out, lse
