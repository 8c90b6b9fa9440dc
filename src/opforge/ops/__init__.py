"""Operators as functions: `from opforge import ops; ops.softmax(x)`.

Each name is an operator known here; the call takes the best implementation that has a Pass on this machine for the
dtype, device and shape class, and PyTorch otherwise. `ops.softmax.why(x)` says which one it takes and why.

Where PyTorch is installed, the import registers every operator as `torch.ops.opforge.NAME`: programs of torch.export
that hold them can be loaded from here on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opforge.dispatch import Function
    from opforge.registry import Registry


def __getattr__(name: str) -> Function:
    if name.startswith("__"):
        raise AttributeError(name)
    from opforge.core.language.errors import UsageError
    from opforge.dispatch import FIRST_TIMES, Chooser, function_of
    from opforge.registry import load

    with FIRST_TIMES:
        chooser = globals().get("_chooser") or globals().setdefault("_chooser", Chooser(_known_now(load())))
        try:
            function = function_of(name, chooser)
        except UsageError as error:
            raise AttributeError(str(error)) from error
    # where it is looked for when a copy of it is asked for
    function.__module__ = __name__
    # kept, so that the next access is an ordinary attribute (and torch.compile can trace through it)
    globals()[name] = function
    return function


def _known_now(found: Registry) -> Registry:
    """The registry whose definitions the import has read already, where it is of the same homes."""
    read: Registry | None = globals().get("_registry")
    return read if read is not None and read.homes == found.homes else found


def __dir__() -> list[str]:
    from opforge.registry import load

    return sorted(load().names())


def _register() -> None:
    """Schemas of all operators known here. Kernels, records, and whether cases and workloads fit the definition, are
    looked at by the first call of each: that is most of what such a file is asked, and no schema needs it.
    """
    import importlib.util
    import sys

    if importlib.util.find_spec("torch") is None:
        return
    from functools import partial

    from opforge.dispatch.registration import register_all
    from opforge.registry import load

    registry = globals()["_registry"] = load()
    register_all(
        (partial(registry.unasked, name) for name in registry.names()), partial(getattr, sys.modules[__name__])
    )


_register()
