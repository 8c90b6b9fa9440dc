"""Offsets of packed sequences, read on the host."""

from torch import Tensor


def ends_of(name: str, offsets: Tensor, rows: int) -> list[int]:
    """The offsets as numbers. Raises ValueError where they don't begin with 0, decrease, or end beyond `rows`."""
    ends: list[int] = offsets.tolist()
    for place, (one, after) in enumerate(zip(ends, [*ends[1:], rows], strict=True)):
        if one > after or (place == 0 and one != 0):
            raise ValueError(
                f"{name} is {one} at {place}: offsets begin with 0, don't decrease, and end with {rows} or less"
            )
    return ends
