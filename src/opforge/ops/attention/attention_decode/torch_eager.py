"""What a PyTorch user writes: pages gathered into a contiguous copy, then scaled_dot_product_attention with a mask;
heads of a group as rows, so that keys are not repeated.

limits    the copy is as large as the table's room; matrix products where PyTorch has no kernel: a softcap, odd sizes
"""

import math

import torch
from torch import Tensor

from opforge.device.torch.attention import aligned
from opforge.device.torch.attention_decode import by_quotient, gather, lost_of, seen_by_the_last

SUPPORTS = {"splits_are_pytorchs": "not batch_invariant"}
INACCURATE = "on a CPU (PyTorch 2.13) the log-sum-exp of 16-bit tensors is off by 3e-6: exponentials of 20 bits"


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
    batch, heads, queries, dim = q.shape
    kv_heads, width = v_pages.shape[2:]
    group = heads // kv_heads if kv_heads else 1
    if not q.numel():
        return q.new_zeros((batch, heads, queries, width)), q.new_zeros((batch, heads, queries), dtype=torch.float32)
    factor = scale or 1.0 / math.sqrt(dim)
    lost = lost_of(block_table, lengths, k_pages, queries, window_left)[:, None, None]
    k, v = (gather(pages, block_table, lengths) for pages in (k_pages, v_pages))
    seen = seen_by_the_last(lengths, queries, k.shape[2], window_left)
    packed = q.reshape(batch, kv_heads, group * queries, dim)
    rows = seen.repeat(1, group, 1)[:, None]
    aten = torch.ops.aten
    whole = dim % 8 == 0 and width % 8 == 0 and k.shape[2] % 8 == 0
    if softcap <= 0 and not q.is_cuda and dim == width:
        mask = torch.zeros_like(rows, dtype=q.dtype).masked_fill_(~rows, -math.inf)
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            packed, k, v, 0.0, False, attn_mask=mask, scale=factor
        )
        blind = ~rows.any(dim=-1)
        out, lse = out.masked_fill(blind[..., None], 0.0), lse.masked_fill(blind, -math.inf)
    elif softcap <= 0 and q.is_cuda and factor > 0 and whole:
        mask = torch.zeros_like(rows, dtype=q.dtype).masked_fill_(~rows, -math.inf)
        bias = mask.expand(batch, kv_heads, group * queries, k.shape[2])
        packed, k, v = (aligned(tensor) for tensor in (packed, k, v))
        found = aten._scaled_dot_product_efficient_attention(packed, k, v, bias, True, 0.0, False, scale=factor)
        blind = ~rows.any(dim=-1)
        # kernels may round the number of queries up
        lse = found[1][..., : group * queries].masked_fill(blind, -math.inf)
        out = found[0].masked_fill(blind[..., None], 0.0)
    else:
        out, lse = by_quotient(packed, k, v, rows, factor, softcap)
    out = out.reshape(batch, heads, queries, width).masked_fill(lost[..., None], math.nan)
    return out, lse.reshape(batch, heads, queries).masked_fill(lost, math.nan)
