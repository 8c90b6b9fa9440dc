"""What stands in memory that no tensor of a call owns, and in outputs before they are written.

Inputs and outputs have different patterns, so that a lane past the end that reads one guard and stores into another
leaves a trace:
    around inputs    pattern 0: quiet NaNs with a random payload; pattern 1: large finite values, random in sign and
    significand
    around outputs   random bytes
    in outputs       pattern 0: quiet NaNs with another payload; pattern 1: finite values. Whole numbers: random, and
    their complement
All of it follows from a seed, which the record of a case keeps. Whole numbers have no NaN: around them stand random
bytes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

PATTERNS = 2
TILE_BYTES = 1 << 14
"""Random bytes are drawn for a tile that is repeated: tensors of gigabytes are filled at the speed of memory."""


@dataclass(frozen=True)
class _Float:
    """Fields of a floating-point format as bits: its width, significand bits without the leading one, exponents that
    are large and finite.
    """

    bits: int
    fraction: int
    exponents: range


# exponents are biased: values of 2^20 and more, in FP8 and float16 those that are large there
_FLOATS = {
    "float64": _Float(64, 52, range(1043, 1054)),
    "float32": _Float(32, 23, range(147, 158)),
    "float16": _Float(16, 10, range(23, 28)),
    "bfloat16": _Float(16, 7, range(147, 158)),
    "float8_e5m2": _Float(8, 2, range(20, 27)),
    "float8_e4m3fn": _Float(8, 3, range(9, 15)),
}


def scribble(whole: Any, seed: int, pattern: int) -> None:
    """Random bytes all over a uint8 tensor."""
    import torch

    generator = torch.Generator().manual_seed((2 * seed + pattern) % (1 << 63))
    tile = (
        torch.empty(TILE_BYTES // 8, dtype=torch.int64)
        .random_(-(1 << 63), None, generator=generator)
        .view(torch.uint8)
        .to(whole.device)
    )
    size = whole.numel()
    tiles = size // TILE_BYTES
    if tiles:
        whole[: tiles * TILE_BYTES].view(tiles, TILE_BYTES).copy_(tile)
    whole[tiles * TILE_BYTES :].copy_(tile[: size - tiles * TILE_BYTES])


def poison_input(region: Any, dtype: str, seed: int, pattern: int) -> None:
    """An input and its guards: `region` is a uint8 tensor of whole elements that holds random bytes."""
    if dtype == "bool":
        region.bitwise_and_(1)
    elif dtype in _FLOATS:
        _fill(region, dtype, seed, pattern)


def poison_output(region: Any, dtype: str, seed: int, pattern: int) -> None:
    """An output before it is written. What a kernel leaves as it was is wrong after one of the two patterns at the
    latest.
    """
    if dtype in _FLOATS:
        _fill(region, dtype, ~seed, pattern)
        return
    scribble(region, seed, 0)
    if dtype == "bool":
        region.bitwise_and_(1).bitwise_xor_(pattern)
    elif pattern:
        region.bitwise_not_()


def _fill(region: Any, dtype: str, seed: int, pattern: int) -> None:
    import torch

    form = _FLOATS[dtype]
    words = region.view({8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}[form.bits])
    draw = random.Random(seed * PATTERNS + pattern)
    top = 1 << (form.bits - 1)
    if pattern == 0:
        words.fill_(_signed(_nan(dtype, form, draw) | draw.choice((0, top)), form.bits))
        return
    exponent = draw.choice(form.exponents) << form.fraction
    words.bitwise_and_(_signed(top | ((1 << form.fraction) - 1), form.bits)).bitwise_or_(_signed(exponent, form.bits))


def _nan(dtype: str, form: _Float, draw: random.Random) -> int:
    """The bits of a quiet NaN, whose payload is neither that of a CPU's nor that of a GPU's own NaN where the format
    has others.
    """
    if dtype == "float8_e4m3fn":
        return 0x7F
    quiet = 1 << (form.fraction - 1)
    exponent = ((1 << (form.bits - 1)) - 1) ^ ((1 << form.fraction) - 1)
    payload = draw.randrange(1, quiet - 1) if quiet > 2 else draw.randrange(quiet)
    return exponent | quiet | payload


def _signed(word: int, bits: int) -> int:
    """The same bits as torch's whole numbers have them: signed, but for a byte."""
    return word - (1 << bits) if bits > 8 and word >> (bits - 1) else word
