"""The definition in tensor operations: one sequence after another, its pages gathered, scores in float32.

limits    lengths are read on the host: a GPU is waited for
"""

import math

import torch
from torch import Tensor

from opforge.device.torch.attention import by_products

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
    page, queries = k_pages.shape[1], q.shape[2]
    factor = scale or 1.0 / math.sqrt(q.shape[-1])
    out = q.new_zeros((*q.shape[:3], v_pages.shape[-1]))
    lse = q.new_full(q.shape[:3], -math.inf, dtype=torch.float32)
    for number, length in enumerate(lengths.tolist()):
        if not length or not out.numel():
            continue
        first = max(0, length - queries - window_left) if window_left >= 0 else 0
        entries = block_table[number, first // page : -(-length // page)].long()
        part = slice(number, number + 1)
        k, v = (
            pages[entries].flatten(0, 1)[first % page : length - first // page * page].transpose(0, 1)[None]
            for pages in (k_pages, v_pages)
        )
        out[part], lse[part] = by_products(q[part], k, v, factor, True, window_left, -1, "bottom_right", softcap)
    return out, lse
