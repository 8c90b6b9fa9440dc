"""Where results are made while calls are timed: in two places, turn about.

`y = f(x)` in a loop needs memory for two results, since the last one lives until the next is there. In how many places
glibc's allocator makes them follows from what a process has allocated and freed before: two, three, nine once. That is
another working set for the same calls: silu of 3 MiB by one thread takes 2.43, 2.74 or 2.90 ms in two, three or four
places (2 cores, Xeon, 2026-11-27). A worker has verified before it is timed, and frees what it held for that. So
whatever else is free is taken for as long as calls are timed, and gaps are left of a result's size. Whether these are
used is seen by the addresses of the results of the calls themselves, which make small objects besides, and by those of
bare allocations where calls are long (docs/timing.md#page-faults-and-ramps).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

from opforge.runner.arena import Arena
from opforge.runner.launch import Launch

SMALL_BYTES, LARGE_BYTES = 1 << 17, 1 << 26
"""Smaller results stay in a cache wherever they are made, and larger ones in none."""
SLACK_BYTES = 100 << 10
"""A gap is so much larger than a result: an aligned request asks for more than it keeps."""
AGAIN, TRIES, LOOKS, LONGER = 3, 16, 12, 48
LONG_S, LOOKED_S = 0.005, 0.5
"""The results of calls longer than LONG_S are not looked at. After LOOKED_S of looking it stays as it is. Both of this
thread's processor time: beside a busy core a call of 2.5 ms takes 5 now and then, and half a second was one try.
"""

Addresses = Callable[[], Sequence[int]]
"""One call, and where it has made its results. They live until it is called again and has made the next ones."""


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

    def settle(self, number: int, launch: Launch, arena: Arena, *, anew: bool) -> None:
        """Two places for each result that a call of a launch makes, until another one is timed. A call that overwrites
        an input is not asked: it would be another call the next time. `anew`: what it had made was held, and is free
        now.
        """

        def call() -> list[int]:
            launch.run()
            return [one.data_ptr() for one in launch.read().values() if one.nbytes >= SMALL_BYTES]

        if anew or self.launch != number:
            self.give_back()
            overwrites = any(slot.becomes for slot in arena.slots)
            self.taken, self.launch = two_places(launch.made, None if overwrites else call), number

    def give_back(self) -> None:
        """Nothing is taken from now on."""
        self.taken.clear()
        self.launch = None


def two_places(sizes: Sequence[int], call: Addresses | None = None) -> list[Any]:
    """Take what is free in the heap, until results of so many bytes are made in two places each, by `call` where one is
    given, and is short. What is returned is to be kept while calls are timed. Empty where the allocator is not glibc's,
    where memory is short, and where results are small or large.
    """
    sizes = [size for size in sizes if size >= SMALL_BYTES]
    if not sizes or sum(sizes) > LARGE_BYTES or not hasattr(ctypes.CDLL(None), "mallinfo2"):
        return []
    import torch

    taken: list[Any] = []
    look: Addresses | None = None
    until = time.thread_time() + LOOKED_S
    try:
        for begun in range(AGAIN):
            taken.clear()
            # begun again, the gaps are elsewhere
            first = [torch.empty(SMALL_BYTES * begun, dtype=torch.uint8)] if begun else []
            found = _all_but_gaps(sizes)
            if not found:
                # what is mapped for each call is not the heap's
                return []
            taken += first + found
            look = look or (call if call is not None and _is_short(call) else bare(sizes))
            for at in range(TRIES):
                # twice, and longer: what a call makes besides may be cut off a gap later
                if time.thread_time() > until or all(places(look, n) <= 2 * len(sizes) for n in (LOOKS, LONGER)):
                    return taken
                _small_ones()
                # what was cut off a gap is in use: one place less, and the next begins elsewhere
                taken += [torch.empty(size + at * 4096, dtype=torch.uint8) for size in sizes]
                _small_ones()
    except RuntimeError as error:
        # PyTorch's word for memory that is not there; what else a call raises is its own
        if "allocate memory" not in str(error):
            raise
        return []
    return taken


def places(call: Addresses, looks: int = LOOKS) -> int:
    """In how many places calls make their results, when it has come round."""
    seen = [tuple(call()) for _ in range(LOOKS + looks)][LOOKS:]
    return len({place for now in seen for place in now})


def bare(sizes: Sequence[int]) -> Addresses:
    """Allocations of so many bytes, and nothing else."""
    import torch

    made: list[Any] = []

    def call() -> list[int]:
        nonlocal made
        # the last ones are freed when these are there
        made = [torch.empty(size, dtype=torch.uint8) for size in sizes]
        return [one.data_ptr() for one in made]

    return call


def _is_short(call: Addresses) -> bool:
    call()
    start = time.thread_time()
    call()
    return time.thread_time() - start <= LONG_S


def _small_ones() -> None:
    """What a tensor has besides its elements is made where such has been freed, and not cut off a gap."""
    import torch

    small = [torch.empty(16 * (at % 8), dtype=torch.uint8) for at in range(256)]
    del small


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
