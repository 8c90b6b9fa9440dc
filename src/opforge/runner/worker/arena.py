"""One block of memory for a call's inputs and outputs, with guard regions between them.

The parent lays the arena out, fills it and owns it; the process that runs the kernel maps the same memory (or copies it
to a device and back as one piece). Every byte outside the tensors holds a pattern (see runner.worker.poison): a read
outside a buffer poisons the result, a write outside it shows when the guards are compared afterwards.
The memory has no name in any file system, so nothing is left behind however a process dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import mmap
import os
import secrets
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.situations import LAYOUTS as LAYOUTS
from opforge.core.language.errors import unknown
from opforge.runner.worker.poison import PATTERNS, poison_input, poison_output, scribble

GUARD_BYTES = 4096
"""Behind each tensor, and before the next one's own guard."""
AHEAD_BYTES = 1024
END_BYTES = 1 << 14
"""Behind the last tensor, an output: a block of 4096 elements of 4 bytes that is stored without a mask ends in here."""
ALIGN_BYTES = 256
PAGE_BYTES = mmap.PAGESIZE
LINE_BYTES = 64
TOGETHER_BYTES = 1 << 28
"""Bytes that are compared at once."""
SHIFTS = {"offset_16": 16, "offset_32": 32}
PLACES = (*SHIFTS, "fenced", "ordinary")
"""Layouts that say where a contiguous tensor lies. Outputs lie so as well; elsewhere they are contiguous and
aligned.
"""


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Where one tensor lies: sizes and strides in elements, offset of its first element in bytes from the arena's
    start.

    role     "input" or "output"
    becomes  of an input that is overwritten: the output that it holds after a run
    """

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    becomes: str = ""

    @property
    def written(self) -> bool:
        """Whether a kernel writes it."""
        return self.role == "output" or bool(self.becomes)

    @property
    def span_bytes(self) -> int:
        """Bytes from the first to one past the last element touched."""
        if 0 in self.shape:
            return 0
        last = sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True))
        return (last + 1) * DTYPES[self.dtype].itemsize

    @property
    def dense(self) -> bool:
        """Whether its elements fill its span: no gaps between them, none at another's address."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize == self.span_bytes


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements.

    >>> contiguous_strides((2, 3, 5))
    (15, 5, 1)
    """
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(1, extent)
    return tuple(reversed(strides))


def strides_for(layout: str, shape: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Strides in elements, and elements to skip before the first, for a layout name.

    contiguous  row-major          transposed  the last two axes swapped in memory    sliced  rows inside a wider matrix
    channels_last  four axes, the second innermost in memory
    strided     every second element    misaligned  contiguous, one element past an aligned address    expanded  first
                axis has stride 0
    offset_16, offset_32   contiguous, 16 or 32 bytes past an address that 256 divides
    fenced      contiguous, up to the end of a page; the next page cannot be touched, where a process of the CPU's runs
                a kernel of its own
    ordinary    contiguous, each tensor an allocation of its own as users' tensors are, without guards
    """
    if layout not in LAYOUTS:
        raise unknown("layout", layout, LAYOUTS)
    row_major = contiguous_strides(shape)
    if layout == "misaligned":
        return row_major, 1
    if layout == "transposed" and len(shape) >= 2:
        order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
        swapped = contiguous_strides([shape[axis] for axis in order])
        strides = list(swapped)
        strides[-1], strides[-2] = swapped[-2], swapped[-1]
        return tuple(strides), 0
    if layout == "channels_last" and len(shape) == 4:
        n, h, w, c = contiguous_strides((shape[0], shape[2], shape[3], shape[1]))
        return (n, c, h, w), 0
    if layout == "sliced" and len(shape) >= 2:
        return contiguous_strides((*shape[:-1], shape[-1] + 3)), 1
    if layout == "expanded" and len(shape) >= 2:
        return (0, *row_major[1:]), 0
    if layout in ("strided", "transposed", "sliced", "expanded") and shape:
        # a vector cannot be transposed, sliced or expanded into something else: every second element is its irregular
        # layout
        return (tuple(2 * stride for stride in row_major), 0) if layout == "strided" else (row_major, 0)
    return row_major, 0


def seal(fd: int) -> None:
    """Fix the size of a file in memory for good: who cuts it short would end every process that has it mapped, with
    SIGBUS. Elsewhere than in memory
    it does nothing."""
    if hasattr(fcntl, "F_ADD_SEALS"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)


def _up(position: int, step: int) -> int:
    return -(-position // step) * step


class Arena:
    """Slots over one anonymous shared mapping. `fd` can be passed to another process."""

    def __init__(self, slots: Sequence[Slot], size: int, fd: int, place: str = "") -> None:
        self.slots = tuple(slots)
        self.size = size
        self.fd = fd
        self.memory = mmap.mmap(fd, size)
        self.pinned = False
        self.place = place

    @classmethod
    def allocate(
        cls, wanted: Sequence[tuple[str, str, str, tuple[int, ...], str]], becomes: Mapping[str, str] | None = None
    ) -> Arena:
        """An arena for `(name, role, dtype, shape, layout)` of each tensor, every byte poisoned.

        becomes   the inputs that are overwritten, and the outputs that they hold afterwards
        """
        slots: list[Slot] = []
        position = 0
        for name, role, dtype, shape, layout in wanted:
            strides, skip = strides_for(layout, shape)
            slot = Slot(
                name=name,
                role=role,
                dtype=dtype,
                shape=shape,
                strides=strides,
                offset=0,
                becomes=(becomes or {}).get(name, ""),
            )
            if layout == "fenced":
                # whole pages before it and behind it; outputs begin on a line, as whatever allocates them lets them
                end = _up(_up(position, PAGE_BYTES) + 2 * PAGE_BYTES + slot.span_bytes, PAGE_BYTES)
                offset = (
                    (end - slot.span_bytes)
                    // (LINE_BYTES if role == "output" else 1)
                    * (LINE_BYTES if role == "output" else 1)
                )
            else:
                offset = (
                    _up(position + AHEAD_BYTES, ALIGN_BYTES) + skip * DTYPES[dtype].itemsize + SHIFTS.get(layout, 0)
                )
            slots.append(replace(slot, offset=offset))
            position = offset + slot.span_bytes + GUARD_BYTES
        position = _up(position + END_BYTES, PAGE_BYTES)
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("opforge-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.ftruncate(fd, position)
        seal(fd)
        place = next((layout for *_, layout in wanted if layout in PLACES), "")
        arena = cls(slots, position, fd, place)
        arena.poison(secrets.randbits(62))
        return arena

    def poison(self, seed: int, pattern: int = 0) -> None:
        """Fill everything, tensors included, with one of the patterns that follow from a seed."""
        whole, pattern = self.bytes(), pattern % PATTERNS
        scribble(whole, seed, pattern)
        for number, slot in enumerate(self.slots):
            if slot.role == "input":
                size, end = DTYPES[slot.dtype].itemsize, slot.offset + slot.span_bytes
                ahead = min(AHEAD_BYTES, slot.offset // size * size)
                poison_input(whole[slot.offset - ahead : end + GUARD_BYTES], slot.dtype, seed + number, pattern)
        self.poison_outputs(seed, pattern)

    def poison_outputs(self, seed: int, pattern: int = 0) -> None:
        """Fill the outputs alone."""
        whole = self.bytes()
        for number, slot in enumerate(self.slots):
            if slot.role == "output" and slot.span_bytes:
                poison_output(whole[slot.offset : slot.offset + slot.span_bytes], slot.dtype, seed + number, pattern)

    def guards(self) -> Iterator[tuple[str, slice]]:
        """What is said of a write, and the bytes that it was made to: behind and before each tensor."""
        for slot in self.slots:
            end = slot.offset + slot.span_bytes
            yield (
                f"past the end of {slot.name}",
                slice(end, end + (END_BYTES if slot is self.slots[-1] else GUARD_BYTES)),
            )
            yield f"before the start of {slot.name}", slice(max(0, slot.offset - AHEAD_BYTES), slot.offset)

    def bytes(self) -> Any:
        """The whole arena as a uint8 tensor that shares its memory."""
        import torch

        return torch.frombuffer(self.memory, dtype=torch.uint8)

    def tensor(self, name: str) -> Any:
        """The tensor in a slot, by its own name or that of the output that it becomes, sharing the arena's memory."""
        return view(self.bytes(), next(slot for slot in self.slots if name in (slot.name, slot.becomes)))

    def tensors(self, role: str) -> dict[str, Any]:
        """Every tensor of a role ("input", "output") by name. An input that is overwritten is an output too."""
        whole = self.bytes()
        found = {slot.name: view(whole, slot) for slot in self.slots if slot.role == role}
        if role == "output":
            found |= {slot.becomes: view(whole, slot) for slot in self.slots if slot.becomes}
        return found

    def around_outputs(self) -> Iterator[slice]:
        """All bytes, in order, but those of outputs. An output with gaps between its elements is left in."""
        start = 0
        for slot in sorted(self.slots, key=lambda slot: slot.offset):
            if slot.role == "output" and slot.span_bytes and slot.dense:
                yield slice(start, slot.offset)
                start = slot.offset + slot.span_bytes
        yield slice(start, self.size)

    def violations(self, before: Any) -> list[str]:
        """What changed outside the outputs since all bytes were as in `before`: sentences that name the buffer. Nothing
        is copied but inputs that are overwritten with gaps between their elements.
        """
        damaged: list[str] = []
        last, total = 0, 0
        for slot in sorted(self.slots, key=lambda slot: slot.offset):
            place = slice(slot.offset, slot.offset + slot.span_bytes)
            total += self._changed(before, slice(last, place.start))
            last = place.stop
            if slot.role == "output":
                continue
            count = self._changed_between(before, slot) if slot.becomes else self._changed(before, place)
            if count and slot.becomes:
                damaged.append(f"{count} bytes were written between the elements of {slot.name}")
            elif count:
                damaged.append(f"input {slot.name} was modified ({count} bytes)")
        total += self._changed(before, slice(last, self.size))
        if total:
            damaged += [
                f"{count} bytes were written {words}"
                for words, place in self.guards()
                if (count := self._changed(before, place))
            ]
        return damaged or ([f"{total} bytes were written outside every tensor"] if total else [])

    def _changed(self, before: Any, place: slice) -> int:
        """How many bytes of a place are other than before. Some at a time: to tell takes as much memory again."""
        import torch

        whole, count = self.bytes(), 0
        for start in range(place.start, place.stop, TOGETHER_BYTES):
            part = slice(start, min(place.stop, start + TOGETHER_BYTES))
            # `before` may be of the arena itself, and asked of its mirror
            now, then = whole[part], before[part].to(whole.device)
            if not torch.equal(now, then):
                count += int((now != then).sum())
        return count

    def _changed_between(self, before: Any, slot: Slot) -> int:
        """The same of what lies between the elements of an input that is overwritten."""
        if slot.dense:
            return 0
        place = slice(slot.offset, slot.offset + slot.span_bytes)
        now, then = self.bytes()[place].clone(), before[place].clone()
        for content in (now, then):
            view(content, replace(slot, offset=0)).zero_()
        return int((now != then.to(now.device)).sum())

    def checksum(self) -> int:
        """The CRC of what stands in the outputs now, in a copy that is made first: one number of 32 bits."""
        whole, checksum = self.bytes(), 0
        spans = [slice(slot.offset, slot.offset + slot.span_bytes) for slot in self.slots if slot.written]
        for copied in [whole[span].clone() for span in spans]:
            checksum = zlib.crc32(memoryview(copied.numpy()), checksum)
        return checksum

    def describe(self) -> dict[str, Any]:
        """What another process needs besides the file descriptor."""
        return {"size": self.size, "slots": [vars(slot) for slot in self.slots], "place": self.place}

    @classmethod
    def attach(cls, description: Mapping[str, Any], fd: int, kept: Arena | None = None) -> Arena:
        """The arena of another process. `kept`, one that was attached before, where it is the same; else it is closed:
        to map and to pin a gigabyte takes longer than the copies that pinning is for.
        """
        if kept is not None and os.path.sameopenfile(kept.fd, fd):
            os.close(fd)
            return kept
        if kept is not None:
            kept.close()
        slots = [
            Slot(**{**slot, "shape": tuple(slot["shape"]), "strides": tuple(slot["strides"])})
            for slot in description["slots"]
        ]
        return cls(slots, description["size"], fd, description["place"])

    def mirror(self, device: Any, *, filled: bool) -> Mirror:
        """The same slots in memory of a device; with the bytes that are here now when `filled`, else undefined."""
        import torch

        memory = self.bytes().to(device) if filled else torch.empty(self.size, dtype=torch.uint8, device=device)
        return Mirror(self.slots, memory)

    def pin(self) -> None:
        """Let a CUDA device copy to and from this memory directly, where it can: several times as fast as through a
        staging buffer.
        """
        import torch

        if not self.pinned and torch.cuda.is_available():
            self.pinned = int(torch.cuda.cudart().cudaHostRegister(self.bytes().data_ptr(), self.size, 0)) == 0

    def close(self) -> None:
        """Give the descriptor back; the memory goes when the last tensor over it does."""
        if self.pinned:
            import torch

            self.pinned = False
            torch.cuda.cudart().cudaHostUnregister(self.bytes().data_ptr())
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Mirror(Arena):
    """An arena's slots in a device's memory, for this process alone: nobody else can reach it."""

    def __init__(self, slots: Sequence[Slot], memory: Any) -> None:
        self.slots = tuple(slots)
        self.size = memory.numel()
        self.whole = memory
        self.fd = -1
        self.pinned = False
        self.place = ""

    def bytes(self) -> Any:
        """The whole mirror as a uint8 tensor on its device."""
        return self.whole


def view(whole: Any, slot: Slot) -> Any:
    """The tensor of a slot inside `whole`, a uint8 tensor of the arena's bytes on any device."""
    import torch

    dtype = getattr(torch, slot.dtype)
    span = whole[slot.offset : slot.offset + slot.span_bytes]
    if 0 in slot.shape:
        return torch.empty(slot.shape, dtype=dtype, device=whole.device)
    if span.storage_offset() % dtype.itemsize == 0:
        return span.view(dtype).as_strided(slot.shape, slot.strides, span.storage_offset() // dtype.itemsize)
    raise ValueError(f"slot {slot.name} is not aligned to its element size")
