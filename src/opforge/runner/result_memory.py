"""Where results are made while calls are timed: in two places, turn about.

`y = f(x)` in a loop needs memory for two results, since the last one lives until the next is there. In how many places
glibc's allocator makes them follows from what a process has allocated and freed before: two, three, nine once. That is
another working set for the same calls: silu of 3 MiB by one thread takes 2.43, 2.74 or 2.90 ms in two, three or four
places (2 cores, Xeon, 2026-11-27). A worker has verified before it is timed, and frees what it held for that. So
whatever else is free is taken for as long as calls are timed, and gaps are left of a result's size. Whether these are
used is looked at with bare allocations: a call that makes small objects besides may still be in three
(docs/timing.md#page-faults-and-ramps).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

SMALL_BYTES, LARGE_BYTES = 1 << 17, 1 << 26
"""Smaller results stay in a cache wherever they are made, and larger ones in none."""
SLACK_BYTES = 100 << 10
"""A gap is so much larger than a result: an aligned request asks for more than it keeps."""
TRIES, LOOKS = 24, 12


class _Mallinfo2(ctypes.Structure):
    """What glibc says of its memory (malloc.h): `arena` it has from the system, of which `fordblks` are free, and
    `keepcost` of these at the end.
    """

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


class ResultMemory:
    """The heap of a process whose launches are timed one after the other."""

    def __init__(self) -> None:
        self.launch: int | None = None
        self.taken: list[Any] = []

    def settle(self, launch: int, made: Sequence[int], *, anew: bool) -> None:
        """Two places for each result that a call of a launch makes, whose bytes are given, until another one is timed.
        `anew`: what it had made was held, and is free now.
        """
        if anew or self.launch != launch:
            self.give_back()
            self.taken, self.launch = two_places(made), launch

    def give_back(self) -> None:
        """Nothing is taken from now on."""
        self.taken.clear()
        self.launch = None


def two_places(sizes: Sequence[int]) -> list[Any]:
    """Take what is free in the heap, until results of so many bytes are made in two places each. What is returned is to
    be kept while calls are timed. Empty where the allocator is not glibc's, where memory is short, and where results
    are small or large.
    """
    sizes = [size for size in sizes if size >= SMALL_BYTES]
    if not sizes or sum(sizes) > LARGE_BYTES or not hasattr(ctypes.CDLL(None), "mallinfo2"):
        return []
    import torch

    try:
        taken = _all_but_gaps(sizes)
        for at in range(TRIES if taken else 0):
            if places(sizes) <= 2 * len(sizes):
                break
            # what was cut off a gap is in use: one place less, and the next begins elsewhere
            taken += [torch.empty(size + at * 4096, dtype=torch.uint8) for size in sizes]
            _small_ones()
    except RuntimeError:
        # PyTorch's word for memory that is not there
        return []
    return taken


def _small_ones() -> None:
    """What a tensor has besides its elements is made where such has been freed, and not cut off a gap."""
    import torch

    small = [torch.empty(16 * (at % 8), dtype=torch.uint8) for at in range(256)]
    del small


def places(sizes: Sequence[int]) -> int:
    """In how many places results of so many bytes are made, when it has come round."""
    import torch

    seen: list[list[int]] = []
    made: list[Any] = []
    for _ in range(2 * LOOKS):
        # the last ones are freed when these are there
        made = [torch.empty(size, dtype=torch.uint8) for size in sizes]
        seen.append([one.data_ptr() for one in made])
    return len({place for now in seen[LOOKS:] for place in now})


def _all_but_gaps(sizes: Sequence[int]) -> list[Any]:
    """Blocks for all that is free, of SMALL_BYTES and more, but for two gaps for each size. Empty where what is made
    does not come from the heap.
    """
    import torch

    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo2
    taken: list[Any] = []

    def at_the_end(size: int) -> bool:
        for _ in range(mallinfo2().fordblks // size + 2):
            before = mallinfo2()
            taken.append(torch.empty(size, dtype=torch.uint8))
            after = mallinfo2()
            if after.keepcost + size <= before.keepcost or after.arena > before.arena:
                return True
        return False

    gaps: set[int] = set()
    for size in (one for one in sizes for _ in range(2)):
        if not at_the_end(size + SLACK_BYTES):
            return []
        gaps.add(taken[-1].data_ptr())
        at_the_end(SMALL_BYTES)
    _small_ones()
    return [block for block in taken if block.data_ptr() not in gaps]
