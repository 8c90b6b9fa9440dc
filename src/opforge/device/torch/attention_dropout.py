"""Which weights of attention are dropped, by Philox-4x32-10 in PyTorch's integer operations: some 300 passes over int64
of a word for each weight.

Source: Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011.
"""

import torch
from torch import Tensor

WORD = 0xFFFFFFFF


def product(word: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """The high and the low 32 bits of a product of 32-bit words, in halves: int64 would overflow."""
    low, high = (word & 0xFFFF) * multiplier, (word >> 16) * multiplier
    return (high + (low >> 16)) >> 16, (((high & 0xFFFF) << 16) + low) & WORD


def keep_factor(q: Tensor, k: Tensor, dropout: float, seed: int, offset: int) -> Tensor:
    """0 for weights that are dropped, 1 / (1 - dropout) for the others: [batch, heads, queries, keys] of float32."""
    batch, heads, queries = q.shape[:3]
    keys = k.shape[2]
    entry, head, query, block = (
        torch.arange(size, device=q.device).reshape(-1, *(1,) * (3 - place))
        for place, size in enumerate((batch, heads, queries, (keys + 3) // 4))
    )
    shape = torch.broadcast_shapes(entry.shape, head.shape, query.shape, block.shape)
    words = [part.expand(shape) for part in (block, query, entry * 65536 + head, torch.full_like(block, offset))]
    key = [seed & WORD, (seed >> 32) & WORD]
    for _ in range(10):
        high_a, low_a = product(words[0], 0xD2511F53)
        high_b, low_b = product(words[2], 0xCD9E8D57)
        words = [high_b ^ words[1] ^ key[0], low_b, high_a ^ words[3] ^ key[1], low_a]
        key = [(key[0] + 0x9E3779B9) & WORD, (key[1] + 0xBB67AE85) & WORD]
    row = torch.stack(words, dim=-1).flatten(-2)[..., :keys]
    return (row >= int(dropout * 4294967296.0)).float() * (1 / (1 - dropout or 1.0))
