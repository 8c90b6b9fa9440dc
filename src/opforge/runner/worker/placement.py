"""Where a kernel finds its tensors: in the arena, in the arena before pages that cannot be touched, or in allocations
of their own.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from typing import Any

from opforge.runner.worker.arena import PAGE_BYTES, Arena, view

PROT_NONE, PROT_READ, PROT_WRITE = 0, 1, 2


class Placement:
    """The tensors of a launch by name.

    whole    the arena's bytes, on the launch's device
    fenced   let pages between the tensors of a fenced arena be untouchable (a process of its own, the CPU's memory)
    apart    each tensor has an allocation of its own, wherever the arena says that they lie
    """

    def __init__(self, arena: Arena, whole: Any, *, fenced: bool, apart: bool = False) -> None:
        self.arena = arena
        self.whole = whole
        self.apart = apart or arena.place == "ordinary"
        self.own: dict[str, Any] = {}
        self.fences: list[tuple[int, int]] = []
        if self.apart:
            self.own = {slot.name: view(whole, slot).clone() for slot in arena.slots}
        elif arena.place == "fenced" and fenced and whole.device.type == "cpu":
            # each tensor's storage is its own pages: what copies a whole storage, as Triton's interpreter does, stays
            # inside
            self.own = {slot.name: _alone(arena, slot) for slot in arena.slots}
            self._fence()

    def tensors(self, memory: Any) -> dict[str, Any]:
        """The tensors in `memory`: the arena's bytes, or a copy of them that a clock rotates through."""
        if self.own and memory is self.whole:
            return self.own
        views = {slot.name: view(memory, slot) for slot in self.arena.slots}
        return {name: tensor.clone() for name, tensor in views.items()} if self.apart else views

    def storages(self) -> set[int]:
        """The addresses of the storages that are given to the kernel."""
        return {
            self.whole.untyped_storage().data_ptr(),
            *(tensor.untyped_storage().data_ptr() for tensor in self.own.values()),
        }

    def bring(self) -> None:
        """Before a run: allocations of their own get what the arena holds."""
        if self.apart:
            for slot in self.arena.slots:
                self.own[slot.name].copy_(view(self.whole, slot))

    def before(self, call: Callable[[], object]) -> Callable[[], object]:
        """`call` after `bring`; `call` itself where nothing has an allocation of its own."""

        def brought() -> None:
            self.bring()
            call()

        return brought if self.apart else call

    def take(self, inputs: Mapping[str, Any]) -> None:
        """After a run: what allocations of their own hold goes to `inputs`, the arena's, so that a change of one is
        seen. Outputs are collected anyway.
        """
        if self.apart:
            for name, tensor in inputs.items():
                tensor.copy_(self.own[name])

    def end(self) -> None:
        """Let everything be touched again."""
        self._protect(PROT_READ | PROT_WRITE)
        self.fences = []

    def _fence(self) -> None:
        """Take away every page that no tensor has a byte of."""
        start = 0
        for slot in self.arena.slots:
            self.fences.append((start, slot.offset // PAGE_BYTES * PAGE_BYTES))
            start = -(-(slot.offset + slot.span_bytes) // PAGE_BYTES) * PAGE_BYTES
        self.fences.append((start, self.arena.size // PAGE_BYTES * PAGE_BYTES))
        self._protect(PROT_NONE)

    def _protect(self, access: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        base = self.whole.data_ptr()
        for start, end in self.fences:
            if end > start and libc.mprotect(ctypes.c_void_p(base + start), ctypes.c_size_t(end - start), access):
                raise OSError(ctypes.get_errno(), f"mprotect: {os.strerror(ctypes.get_errno())}")


def _alone(arena: Arena, slot: Any) -> Any:
    """A slot's tensor over a storage of that size."""
    import torch

    if not slot.span_bytes:
        return view(arena.bytes(), slot)
    span = torch.frombuffer(arena.memory, dtype=torch.uint8, count=slot.span_bytes, offset=slot.offset)
    return span.view(getattr(torch, slot.dtype)).as_strided(slot.shape, slot.strides)
