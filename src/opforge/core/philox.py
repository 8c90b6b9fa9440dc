"""Philox-4x32-10, a counter-based generator: the random word of an element follows from a seed and the element's index
alone.

Element i takes word i % 4 of the block whose counter is (i / 4 low, i / 4 high, 0, 0), under the key (seed low, seed
high). So the same seed gives the same words on every backend, in any order, however the work is divided.

Source: Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011.
"""

from __future__ import annotations

from typing import Any

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF


def threshold(p: float) -> int:
    """The least 32-bit word that keeps an element when it is dropped with probability `p`, 0 <= p < 1.

    >>> threshold(0.5) == 2**31
    True
    """
    return int(p * 4294967296.0)


def words(index: Any, seed: int) -> Any:
    """The random 32-bit words of elements, as non-negative int64.

    index   element indices: an int, or any array of int64 that knows Python's integer operators (a torch tensor)

    >>> [hex(words(i, 0)) for i in range(4)]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1 = (index >> 2) & _LOW, (index >> 34) & _LOW
    c2 = c3 = index & 0
    k0, k1 = seed & _LOW, (seed >> 32) & _LOW
    for _ in range(ROUNDS):
        high0, low0 = _product(c0, MULTIPLIERS[0])
        high1, low1 = _product(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + KEY_STEPS[0]) & _LOW, (k1 + KEY_STEPS[1]) & _LOW
    which = index & 3
    return c0 * (which == 0) + c1 * (which == 1) + c2 * (which == 2) + c3 * (which == 3)


def _product(word: Any, multiplier: int) -> tuple[Any, Any]:
    """The high and the low 32 bits of a product of 32-bit words, in halves, so that int64 never overflows."""
    low, high = (word & 0xFFFF) * multiplier, (word >> 16) * multiplier
    return (high + (low >> 16)) >> 16, (((high & 0xFFFF) << 16) + low) & _LOW
