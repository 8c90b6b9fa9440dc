"""Where results are made while calls are timed: in two places, turn about.

`y = f(x)` in a loop needs memory for two results, since the last one lives until the next is there. In how many places
glibc's allocator makes them follows from what a process has allocated and freed before: two, three, nine once. That is
another working set for the same calls: silu of 3 MiB by one thread takes 2.43, 2.74 or 2.90 ms in two, three or four
places (2 cores, Xeon, 2026-11-27). A worker has verified before it is timed, and frees what it held for that. So
whatever else is free is taken for as long as calls are timed, and gaps are left of a result's size. Whether these are
used is seen by the addresses of the results of the calls themselves, which make small objects besides, and by those of
bare allocations where calls are long (docs/timing.md#page-faults-and-ramps).

What undoes it is the cache of small blocks that glibc keeps for each thread, seven of a size. An aligned request takes
96 bytes more than it keeps and gives back the end; where the cache of that size is not full, the end goes there, and is
in use for the heap: when the result is freed, its memory is too small for the next one. So these caches are full when
calls begin (the sampler does it, since a request empties them again), and there are spare small blocks elsewhere
(SmallBlocks), or small objects would be cut off the gaps. A call of torch.compile holds small blocks of that size while
it asks for its result, so each result puts an end into a cache that was full when the call began, and where caches
were filled it makes results in five to seven places, else in two to four: they are left as they are for it.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from opforge.runner.worker import sample_requests
from opforge.runner.worker.arena import Arena
from opforge.runner.worker.launch import Launch

SMALL_BYTES, LARGE_BYTES = 1 << 17, 1 << 26
"""Smaller results stay in a cache wherever they are made, and larger ones in none."""
SLACK_BYTES = 100 << 10
"""A gap is so much larger than a result: an aligned request asks for more than it keeps."""
AGAIN, TRIES, LOOKS, LONGER = 3, 16, 12, 48
LONG_S, LOOKED_S = 0.005, 0.5
"""The results of calls longer than LONG_S are not looked at. After LOOKED_S of looking it stays as it is. Both of this
thread's processor time: beside a busy core a call of 2.5 ms takes 5 now and then, and half a second was one try.
"""

FILLED = 4
"""Before so many calls caches are filled: what belongs to results that are alive comes into them when the next calls
free it.
"""
SPARE = ((96, range(24, 249, 16)), (32, range(264, 1033, 16)), (12, (1500, 2000, 4000, 8000, 16000, 33000, 66000)))
"""Spare blocks of each size: what a call and its request make besides results. 32 KiB are what samples come back in."""

Fill = Callable[[], None]
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
    """The heap of a process whose launches are timed one after the other.

    as_it_is    its calls hold small blocks while they ask for their results, so caches are left as they are
    """

    def __init__(self) -> None:
        self.launch: int | None = None
        self.as_it_is = False
        self.settled = Settled()

    def settle(self, number: int, launch: Launch, arena: Arena, *, anew: bool) -> int:
        """Two places for each result that a call of a launch makes, until another one is timed. A call that overwrites
        an input is not asked: it would be another call the next time. `anew`: what it had made was held, and is free
        now. Returns before how many calls the sampler is to fill the caches.
        """

        def call() -> list[int]:
            launch.run()
            return [one.data_ptr() for one in launch.read().values() if one.nbytes >= SMALL_BYTES]

        if anew or self.launch != number:
            self.give_back()
            overwrites = any(slot.becomes for slot in arena.slots)
            self.settled, self.launch = (
                two_places(launch.made, None if overwrites else call, fills=not self.as_it_is),
                number,
            )
        return FILLED if self.settled.filled else 0

    def give_back(self) -> None:
        """Nothing is taken from now on."""
        self.settled, self.launch = Settled(), None


class Settled(NamedTuple):
    """What is to be kept while calls are timed, and whether caches are to be full when they begin."""

    kept: tuple[Any, ...] = ()
    filled: bool = False


def two_places(sizes: Sequence[int], call: Addresses | None = None, *, fills: bool = True) -> Settled:
    """Take what is free in the heap, until results of so many bytes are made in two places each, by `call` where one is
    given, and is short; with full caches first, if `fills`. Nothing is kept where the allocator is not glibc's, where
    memory is short, and where results are small or large.
    """
    sizes = [size for size in sizes if size >= SMALL_BYTES]
    if not sizes or sum(sizes) > LARGE_BYTES or not hasattr(ctypes.CDLL(None), "mallinfo2"):
        return Settled()
    look = call if call is not None and _is_short(call) else bare(sizes)
    fill = sample_requests.fill_caches() if fills else None
    kept: list[Any] = []
    try:
        if fill is not None and _in_gaps(sizes, look, kept, fill):
            return Settled(tuple(kept), filled=True)
        kept.clear()
        _in_gaps(sizes, look, kept)
    except RuntimeError as error:
        # PyTorch's word for memory that is not there; what else a call raises is its own
        if "allocate memory" not in str(error):
            raise
        return Settled()
    return Settled(tuple(kept))


def _in_gaps(sizes: Sequence[int], look: Addresses, kept: list[Any], fill: Fill | None = None) -> bool:
    """Whether results are made in two gaps each, when what is kept is all that is free but these."""
    until = time.thread_time() + LOOKED_S
    for begun in range(AGAIN):
        kept.clear()
        # begun again, the gaps are elsewhere
        first = _made([SMALL_BYTES * begun]) if begun else []
        found, gaps = _all_but_gaps(sizes)
        kept += first + found
        if not gaps:
            # what is mapped for each call is not the heap's
            return False
        if fill is not None:
            kept.append(SmallBlocks())
            for _ in range(2):
                # what was alive, and no gap, is free after one call or the other
                look()
                kept += [one for one in _made(sizes) if one.data_ptr() not in gaps]
        for at in range(TRIES):
            # twice, and longer: what a call makes besides may be cut off a gap later
            if all(places(look, looks, fill) <= 2 * len(sizes) for looks in (LOOKS, LONGER)):
                return True
            if time.thread_time() > until:
                return False
            _small_ones()
            # what was cut off a gap is in use: one place less, and the next begins elsewhere
            kept += _made([size + at * 4096 for size in sizes])
            _small_ones()
    return False


def places(call: Addresses, looks: int = LOOKS, fill: Fill | None = None) -> int:
    """In how many places calls make their results, when it has come round."""
    if fill is not None:
        for _ in range(FILLED):
            fill()
            call()
        fill()
    seen = [tuple(call()) for _ in range(LOOKS + looks)][LOOKS:]
    return len({place for now in seen for place in now})


def bare(sizes: Sequence[int]) -> Addresses:
    """Allocations of so many bytes, and nothing else."""
    made: list[Any] = []

    def call() -> list[int]:
        nonlocal made
        # the last ones are freed when these are there
        made = _made(sizes)
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


class SmallBlocks:
    """Spare small blocks: free ones between others that are in use, so that they stay as small as they are. They are
    there until this object ends.
    """

    def __init__(self) -> None:
        libc = _libc()
        blocks = [libc.malloc(size) for count, sizes in SPARE for size in sizes for _ in range(2 * count)]
        for block in blocks[::2]:
            libc.free(block)
        self.in_use, self.free = blocks[1::2], libc.free

    def __del__(self) -> None:
        for block in self.in_use:
            self.free(block)


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    return libc


def _made(sizes: Sequence[int]) -> list[Any]:
    import torch

    return [torch.empty(size, dtype=torch.uint8) for size in sizes]


def _all_but_gaps(sizes: Sequence[int]) -> tuple[list[Any], set[int]]:
    """Blocks for all that is free, of SMALL_BYTES and more, but for two gaps for each size, and where these begin.
    Nothing where what is made does not come from the heap.
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
            return [], set()
        gaps.add(taken[-1].data_ptr())
        at_the_end(SMALL_BYTES)
    _small_ones()
    return [block for block in taken if block.data_ptr() not in gaps], gaps
