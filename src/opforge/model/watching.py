"""What ran: every call that a patched model makes of a function in place of PyTorch's, while somebody watches.

Nothing is counted otherwise: one global is read at each call, and in a compiled graph none.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from opforge.model.rewriting import Site

METHODS = ("softmax", "log_softmax", "matmul", "bmm", "relu")
"""Methods of a tensor that compute what a function here does; a rewritten name does not reach them."""
_watch: Watch | None = None
_one_watch = threading.Lock()


@dataclass(kw_only=True)
class Seen:
    """The calls of one site in one module.

    computed   by (phase, operator, implementation): how many calls
    refused    by (phase, reason): how many calls PyTorch computed
    """

    computed: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def calls(self) -> int:
        return self.computed.total() + self.refused.total()


@dataclass(kw_only=True)
class Watch:
    """The calls of one model in one thread.

    paths    the name of each module, by its id
    phase    what runs now
    seen     by (module's name, site)
    missed   calls of PyTorch's functions that come from no site, by (module's name, site)
    """

    paths: Mapping[int, str]
    phase: str = ""
    thread: int = field(default_factory=threading.get_ident)
    stack: list[str] = field(default_factory=list)
    seen: dict[tuple[str, Site], Seen] = field(default_factory=dict)
    missed: Counter[tuple[str, Site]] = field(default_factory=Counter)

    @property
    def path(self) -> str:
        return self.stack[-1] if self.stack else ""

    def call(self, real: Callable[..., Any], site: Site, given: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """The result of `real`, noted under its site."""
        # what it calls of PyTorch is no call of the model's
        with torch._C.DisableTorchFunction():
            route = real.why(*given, **named)  # type: ignore[attr-defined]
            seen = self.seen.setdefault((self.path, site), Seen())
            if route.operator:
                seen.computed[self.phase, route.operator, route.choice.implementation.name] += 1
            else:
                seen.refused[self.phase, route.reason] += 1
            return real(*given, **named)


class _Missed(TorchFunctionMode):  # type: ignore[misc]
    """Notes calls of PyTorch's functions that were not replaced."""

    def __init__(self, watch: Watch, targets: Mapping[Any, str]) -> None:
        super().__init__()
        self._watch = watch
        self._targets = dict(targets) | {getattr(torch.Tensor, name): f"Tensor.{name}" for name in METHODS}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = self._targets.get(func)
        if name is not None:
            frame = sys._getframe(1)
            while frame.f_back is not None and "/torch/" in frame.f_code.co_filename:
                frame = frame.f_back
            self._watch.missed[self._watch.path, site_of(name, frame)] += 1
        return func(*args, **(kwargs or {}))


def site_of(function: str, frame: FrameType) -> Site:
    """The place in Python source where a frame is."""
    code = frame.f_code
    return Site(function, code.co_filename, frame.f_lineno, code.co_qualname)


def watched(name: str, real: Callable[..., Any], site: Site | None = None) -> Callable[..., Any]:
    """`real` as it is called in place of PyTorch's function `name`. `site` where the call's place is not the site."""

    def call(*given: Any, **named: Any) -> Any:
        if _watch is None or torch.compiler.is_compiling() or threading.get_ident() != _watch.thread:
            return real(*given, **named)
        return _watch.call(real, site or site_of(name, sys._getframe(1)), given, named)

    call.__name__ = call.__qualname__ = name
    call.why = real.why  # type: ignore[attr-defined]
    return call


@contextmanager
def watching(model: torch.nn.Module, targets: Mapping[Any, str]) -> Iterator[Watch]:
    """A Watch over what `model` calls in this thread, while the context lasts. One watches at a time."""
    global _watch
    watch = Watch(paths={id(module): name for name, module in model.named_modules()})

    def enter(module: torch.nn.Module, _: Any) -> None:
        if threading.get_ident() == watch.thread:
            watch.stack.append(watch.paths.get(id(module), watch.path))

    def leave(_: torch.nn.Module, __: Any, ___: Any) -> None:
        if threading.get_ident() == watch.thread and watch.stack:
            watch.stack.pop()

    with _one_watch:
        hooks = (register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True))
        _watch = watch
        try:
            with _Missed(watch, targets), warnings.catch_warnings():
                # a compiled model is run as it is: the hooks of this watch are called
                warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when")
                yield watch
        finally:
            _watch = None
            for hook in hooks:
                hook.remove()
