"""Which weights of attention are dropped: a function of a seed, an offset and the weight's place alone, by Philox.

The weight of key j for query i, of head h of entry b, takes word j % 4 of the block whose counter is
(j / 4, i, b * 2^16 + h, offset), under the key (seed low, seed high). Lengths are no part of it: padding changes no
mask.
"""

from __future__ import annotations

from typing import Any

from opforge.core.philox import KEY_STEPS, MULTIPLIERS, ROUNDS, _product, threshold

_LOW = 0xFFFFFFFF


def four_words(c0: Any, c1: Any, c2: Any, c3: Any, seed: int) -> tuple[Any, Any, Any, Any]:
    """The words of the block of a counter, as non-negative int64: ints, or arrays of int64 that broadcast.

    >>> [hex(word) for word in four_words(0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, -1)]
    ['0x408f276d', '0x41c83b0e', '0xa20bc7c6', '0x6d5451fd']
    """
    k0, k1 = seed & _LOW, (seed >> 32) & _LOW
    for _ in range(ROUNDS):
        high0, low0 = _product(c0, MULTIPLIERS[0])
        high1, low1 = _product(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + KEY_STEPS[0]) & _LOW, (k1 + KEY_STEPS[1]) & _LOW
    return c0, c1, c2, c3


def kept_of(entry: Any, head: Any, query: Any, key: Any, p: float, seed: int, offset: int) -> Any:
    """Whether weights are kept, of their places as arrays of int64 that broadcast: dropped with probability `p`.

    The keys are the last axis, from 0 on, one after another.
    """
    blocks = key[..., ::4] >> 2
    words = four_words(blocks, query, (entry << 16) + head, offset, seed)
    # [..., blocks, 4], the words of a block one after another
    row = sum(word.unsqueeze(-1) * _unit(key, place) for place, word in enumerate(words))
    return row.flatten(-2)[..., : key.shape[-1]] >= threshold(p)


def _unit(like: Any, place: int) -> Any:
    ones = like.new_ones(4).cumsum(0) - 1
    return (ones == place).long()
