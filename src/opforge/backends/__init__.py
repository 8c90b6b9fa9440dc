"""The backends, each behind one protocol, and plugins through the entry point group `opforge.backends`."""

from __future__ import annotations

from functools import lru_cache

from opforge.backends.interface import (
    Artefact as Artefact,
    Backend as Backend,
    Call as Call,
    Capability as Capability,
    Emulated as Emulated,
    ExecutionMode as ExecutionMode,
    Kernel as Kernel,
    Missing as Missing,
    Native as Native,
)
from opforge.core.language.errors import unknown
from opforge.core.language.plugins import plugged


@lru_cache(maxsize=1)
def backends() -> dict[str, Backend]:
    """Every backend by name, in the order reports show them. Importing them imports no toolchain."""
    from opforge.backends.cpp import Cpp
    from opforge.backends.cuda import Cuda
    from opforge.backends.library import Library
    from opforge.backends.tilelang_lang import TileLang
    from opforge.backends.torch_eager import TorchCompile, TorchEager
    from opforge.backends.triton_lang import Triton

    by_name: dict[str, Backend] = {
        backend.name: backend
        for backend in (TorchEager(), TorchCompile(), Triton(), Cuda(), TileLang(), Cpp(), Library())
    }
    for made in plugged("opforge.backends").values():
        plugin: Backend = made()
        by_name[plugin.name] = plugin
    return by_name


def backend(name: str) -> Backend:
    """One backend by name. Raises UsageError with the nearest name."""
    known = backends()
    if name not in known:
        raise unknown("backend", name, known)
    return known[name]
