"""What Triton's interpreter itself stored during a launch: what else was written meanwhile, no kernel has computed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

MODULE = "triton.runtime.interpreter"
PLACE = "_interpreter"
"""The name in that module of the compiled part that loads and stores (Triton 3.6)."""
STORES = {"store": 0, "atomic_rmw": 1, "atomic_cas": 0}
"""Its functions that write, and which argument of them has the addresses."""


class Stores:
    """The addresses that were stored to, as they were given: arrays with their masks, and bytes of an element."""

    def __init__(self) -> None:
        self.kept: list[tuple[Any, Any, int]] = []

    def written(self, base: int, count: int) -> Any:
        """Of `count` bytes from the address `base` on: which were stored to, a bool tensor."""
        import numpy
        import torch

        marks: Any = numpy.zeros(count, dtype=bool)
        for addresses, mask, size in self.kept:
            at = numpy.asarray(addresses).reshape(-1).astype(numpy.int64) - base
            inside = (at >= 0) & (at <= count - size)
            if mask is not None:
                inside &= numpy.broadcast_to(numpy.asarray(mask).astype(bool), numpy.shape(addresses)).reshape(-1)
            for byte in range(size):
                marks[at[inside] + byte] = True
        return torch.from_numpy(marks)


class _Watched:
    """The compiled part of the interpreter, whose stores are kept."""

    def __init__(self, real: Any, stores: Stores) -> None:
        self._real = real
        self._stores = stores

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._real, name)
        if name not in STORES:
            return function
        first = STORES[name]

        def stored(*given: Any) -> Any:
            addresses, value = given[first : first + 2]
            mask = given[first + 2] if name != "atomic_cas" else None
            self._stores.kept.append((addresses, mask, int(value.dtype.itemsize)))
            return function(*given)

        # the next one finds it as an attribute
        self.__dict__[name] = stored
        return stored


@contextlib.contextmanager
def stores() -> Iterator[Stores | None]:
    """The stores of what is interpreted meanwhile; None where this Triton keeps its compiled part elsewhere."""
    module = sys.modules.get(MODULE)
    real = getattr(module, PLACE, None)
    if not all(hasattr(real, name) for name in STORES):
        yield None
        return
    kept = Stores()
    setattr(module, PLACE, _Watched(real, kept))
    try:
        yield kept
    finally:
        setattr(module, PLACE, real)


def interpreted_notes() -> tuple[str, ...]:
    """What a compiler would have said of the kernels that were interpreted since this was asked last."""
    syntax = sys.modules.get("opforge.backends.triton_syntax")
    said: list[str] = getattr(syntax, "notes", [])
    told = tuple(said)
    said.clear()
    return told
