"""What the bits of wrong elements say: whether they are what stood there before, or what stands outside an input.

Memory that a kernel must not read, and outputs before they are written, hold NaNs whose payloads follow from the case's
seed (runner.poison). Arithmetic keeps a payload where it makes no NaN of its own, on a CPU; a GPU's own NaN tells
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opforge.runner.worker.arena import Arena, Slot, view

WORDS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


@dataclass(frozen=True, kw_only=True)
class Traces:
    """Of each element of an output (bool tensors of its shape): whether it was never written, holds the payload of
    memory outside the input `read_past`, or that of shared memory which the emulator fills before a block runs.
    """

    unwritten: Any
    outside: Any
    unshared: Any
    read_past: str


def traces_of(arena: Arena, pristine: Any, output: str) -> Traces | None:
    """The traces in an output, by the bytes that all memory held before the run. None where there are none to look
    for: the output overwrites an input, or its format has one NaN alone.
    """
    import torch

    slot = next((slot for slot in arena.slots if output == slot.name), None)
    if slot is None or slot.role != "output" or slot.dtype == "float8_e4m3fn" or not slot.span_bytes:
        return None
    actual, before = arena.tensor(output), view(pristine.to(arena.bytes().device), slot)
    now = _bits(actual)
    nothing = torch.zeros(actual.shape, dtype=torch.bool, device=actual.device)
    if not actual.is_floating_point():
        # one byte in 256 is by chance what was there: only where all of them are it says anything
        return Traces(unwritten=now == _bits(before), outside=nothing, unshared=nothing, read_past="")
    outside, read_past = nothing, ""
    for one in arena.slots:
        word = _outside(pristine, one)
        if word is None:
            continue
        hit = actual.isnan() & (_unsigned(now) == _unsigned(_bits(word.to(actual.device).to(actual.dtype))))
        if bool(hit.any()) and not bool(outside.any()):
            read_past = one.name
        outside = outside | hit
    # all bits set, the sign too: arithmetic on a CPU gives another NaN
    unshared = actual.isnan() & (now == (-1 if actual.element_size() > 1 else 255))
    return Traces(unwritten=now == _bits(before), outside=outside, unshared=unshared, read_past=read_past)


def _outside(pristine: Any, slot: Slot) -> Any:
    """The NaN behind an input, as a tensor of one element; None where there is none."""
    import torch

    if slot.role != "input" or not hasattr(torch, slot.dtype):
        return None
    dtype = getattr(torch, slot.dtype)
    end = slot.offset + slot.span_bytes
    if not dtype.is_floating_point or end + dtype.itemsize > pristine.numel():
        return None
    word = pristine[end : end + dtype.itemsize].clone().view(dtype)
    return word if bool(word.float().isnan().all()) and dtype.itemsize > 1 else None


def _bits(tensor: Any) -> Any:
    import torch

    return (
        tensor.contiguous().view(getattr(torch, WORDS[tensor.element_size()])) if tensor.dtype != torch.bool else tensor
    )


def _unsigned(bits: Any) -> Any:
    """Without the sign, which arithmetic may turn."""
    return bits & ((1 << (8 * bits.element_size() - 1)) - 1)
