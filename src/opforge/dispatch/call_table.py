"""The table that a call of an operator is looked up in, in C++ (device/include/opforge/abi/call_table.cpp).

Compiled once for this Python, and kept in the cache. Without a compiler, Python's headers, a place to keep it, or
DLPack's C exchange API (PyTorch has it from 2.10), there is none: calls are looked up in Python, with the same result.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any

import torch

from opforge.backends import native, torch_private
from opforge.backends.cpp import host_compiler
from opforge.core.language.errors import OpforgeError
from opforge.runner.worker.prepared_call import Fresh, PreparedCall, PreparedFunction

SPREAD, WHOLE, BOUND, BOUND_ANYWAY, NATIVE, NATIVE_ANYWAY = range(6)
"""Kinds of calls: `call(*tensors, **extra)`; `call(tensors)`; `output = make(*extra)`, `call(*tensors, output)` while
autocast is off; the same with autocast on too, since most kernels compute in the dtype that they are given; and those
two where `call` is what `native_call` gives."""
MOST_TENSORS = 12
"""kMostTensors in native_call.h."""
_MODULE = "opforge_call_table"


@lru_cache(maxsize=1)
def _module() -> Any:
    """The extension module, with the types CallTable and Native; None where it cannot be had."""
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").is_file() or sys.implementation.name != "cpython":
        return None
    try:
        # Python's version stands in the cache's key: one that is upgraded in place gets a type of its own.
        flags = (f"-I{include}", f"-DOPFORGE_PYTHON={sys.hexversion}")
        path = native.helper_path("call_table.cpp", host_compiler(), flags, linked=False)
        if path is None:
            return None
        loader = ExtensionFileLoader(_MODULE, str(path))
        spec = importlib.util.spec_from_loader(_MODULE, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except (OpforgeError, OSError, ImportError):
        return None
    return module


def _exchange() -> Any:
    """DLPack's C exchange API of PyTorch's tensors, or None."""
    return getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)


@cache
def _casting(module: Any) -> tuple[int, ...]:
    """Which of the dispatcher's keys are autocast's, and what they are while it is off: four words for the table; ()
    where they cannot be read. Autocast is switched for each kind of device in a thread of its own.
    """

    def switched() -> tuple[int, ...]:
        off = module.dispatch_keys()
        masks = [0] * len(off)
        for kind in torch_private.autocast_devices():
            torch.set_autocast_enabled(kind, True)
            masks = [mask | key ^ on for mask, key, on in zip(masks, off, module.dispatch_keys(), strict=True)]
            torch.set_autocast_enabled(kind, False)
        return (*masks, *(key & mask for key, mask in zip(off, masks, strict=True)))

    with ThreadPoolExecutor(1) as apart:
        return apart.submit(switched).result()


def native_call(call: PreparedCall) -> PreparedFunction | None:
    """`run` of a call whose kernel is bound to a class of tensors on the CPU, without a frame of Python's and without
    TVM-FFI's own caller. None where there is no such way.
    """
    handle = getattr(call.bound, "__chandle__", None)
    if handle is None or not call.makers or not all(isinstance(make, Fresh) for make in call.makers):
        return None
    module = _module() if _exchange() is not None else None
    if module is None:
        return None
    pairs = [part for make in call.makers if isinstance(make, Fresh) for part in (make.make, make.given)]
    try:
        found: PreparedFunction = module.Native(call.bound, handle(), tuple(pairs), call.run, _exchange())
    except (TypeError, ValueError):
        return None
    return found


def forward_of(run: PreparedFunction, places: tuple[int, ...] | None) -> Callable[..., Any] | None:
    """`forward(ctx, *tensors)` of an autograd.Function around `run`, which keeps the tensors and outputs at `places`
    (-1: None) for the backward pass. None where `run` is none of `native_call`'s, or PyTorch has no such place.
    """
    module = _module() if places is not None and torch_private.SAVES_DIRECTLY else None
    if module is None or type(run) is not module.Native:
        return None
    found: Callable[..., Any] = module.Forward(run, places)
    return found


def call_table(slow: Callable[..., Any]) -> Any:
    """`table(tensors, scalars)`: the call kept for that class of tensors and parameters, else `slow(tensors, scalars)`.
    None where there is no table.
    """
    exchange = _exchange()
    module = _module() if exchange is not None else None
    if module is None:
        return None
    quiet = (
        torch_private.transforms_active,
        torch_private.dispatch_modes,
        torch_private.tracing_state,
    )
    levels = vars(torch_private.forward_levels)
    try:
        return module.CallTable(
            slow,
            (torch.Tensor, torch.nn.Parameter),
            quiet,
            torch_private.any_autocast,
            torch.is_grad_enabled,
            levels,
            "_current_level",
            vars(torch.compiler),
            "_is_compiling_flag",
            exchange,
            _casting(module),
        )
    except (TypeError, ValueError):
        return None
