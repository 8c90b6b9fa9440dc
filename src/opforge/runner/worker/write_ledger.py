"""Who wrote a kernel's outputs, where Triton kernels are interpreted. PyTorch's dispatcher shows what one thread asks
of PyTorch; NumPy, a BLAS, another thread, or PyTorch with its modes off leave one trace that all of them share:
memory that changed while no kernel ran."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opforge.runner.worker.data_flow import DataFlow
from opforge.runner.worker.interpreted_stores import Stores

FOREIGN = ("numpy", "torch", "ctypes", "scipy", "cffi", "tvm_ffi", "threading", "subprocess", "mmap")
"""Modules that a kernel's own code has no use for: compiled for a device, it could not call them."""


class Ledger:
    """Keeps the contents of all memory that kernels were given as they were when somebody known wrote them last.

    evidence   what was found, as a list of sentences, without those that repeat
    """

    def __init__(self, known: Sequence[Any], threads: int) -> None:
        self.contents: dict[int, tuple[Any, Any]] = {}
        self.threads = threads
        self.evidence: list[str] = []
        self.inside = False
        self.flow = DataFlow([tensor for tensor in known if tensor.device.type == "cpu"])
        for tensor in known:
            self.wrote(tensor)

    def wrote(self, tensor: Any) -> None:
        """Somebody known has written this tensor's memory, or made it."""
        import torch

        if (
            not isinstance(tensor, torch.Tensor)
            or tensor.device.type != "cpu"
            or self.inside
            or not tensor.untyped_storage().nbytes()
        ):
            return
        storage = tensor.untyped_storage()
        self.contents[storage.data_ptr()] = (_bytes(storage), _bytes(storage).clone())

    def check(self, tensors: Sequence[Any], when: str) -> None:
        """Has anybody else written these tensors' memory since?"""
        import torch

        self._threads(when)
        for tensor in tensors:
            if (
                not isinstance(tensor, torch.Tensor)
                or tensor.device.type != "cpu"
                or not tensor.untyped_storage().nbytes()
            ):
                continue
            address = tensor.untyped_storage().data_ptr()
            if address not in self.contents:
                # inputs, and tables that were made at import, are known from here on
                self.wrote(tensor)
                continue
            now = _bytes(tensor.untyped_storage())
            before = self.contents[address][1]
            if now.numel() != before.numel() or not torch.equal(now, before):
                self._found(f"memory changed while none of its kernels ran ({when})")
                self.wrote(tensor)

    def ran(self, tensors: Sequence[Any], stored: Stores | None) -> None:
        """A kernel was interpreted on these tensors: what changed is where the interpreter itself stored. Then their
        memory is known again.
        """
        for tensor in tensors:
            storage = tensor.untyped_storage()
            known = self.contents.get(storage.data_ptr()) if tensor.device.type == "cpu" else None
            if known is not None and stored is not None:
                changed = _bytes(storage) != known[1]
                if bool(changed.any()) and bool(
                    (changed & ~stored.written(storage.data_ptr(), storage.nbytes())).any()
                ):
                    self._found("memory changed during a launch where its kernel stored nothing")
            self.wrote(tensor)
        self.flow.stored(tensors, stored)

    def over(self, outputs: Sequence[Any]) -> list[str]:
        """What was found, once the call is over."""
        self.check(outputs, "after its last launch")
        for words in self.flow.evidence([tensor for tensor in outputs if tensor.device.type == "cpu"]):
            self._found(words)
        return self.evidence

    def _threads(self, when: str) -> None:
        running = len(sys._current_frames())
        if running > self.threads:
            self._found(f"{running - self.threads} threads of its own ran beside its kernels ({when})")

    def _found(self, words: str) -> None:
        if words not in self.evidence:
            self.evidence.append(words)


def _bytes(storage: Any) -> Any:
    import torch

    return torch.empty(0, dtype=torch.uint8).set_(storage)


def foreign_names(function: Callable[..., Any], seen: set[int] | None = None) -> tuple[str, ...]:
    """Modules that a kernel's code names, or that of the functions it calls, and that no device could run: under an
    interpreter they would do its work.
    """
    seen = set() if seen is None else seen
    function = getattr(function, "fn", function)
    code, scope = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    if code is None or id(code) in seen or _root(function) == "triton":
        return ()
    seen.add(id(code))
    found: set[str] = set()
    for name in code.co_names:
        value = scope.get(name)
        root = _root(value) if callable(value) or type(value).__name__ == "module" else name
        if root in FOREIGN and (value is not None or name not in scope):
            found.add(f"{name} of {root}")
        elif callable(value):
            found.update(foreign_names(value, seen))
    return tuple(sorted(found))


def _root(value: object) -> str:
    module = (
        getattr(value, "__name__", "") if type(value).__name__ == "module" else getattr(value, "__module__", "") or ""
    )
    return str(module).split(".")[0]


def tensors_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The tensors among a launch's arguments, those inside descriptors too."""
    values = [*args, *kwargs.values()]
    return [
        item for value in values for item in (value, getattr(value, "base", None)) if hasattr(item, "untyped_storage")
    ]
