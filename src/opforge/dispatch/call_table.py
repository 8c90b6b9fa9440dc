"""The table that a call of an operator is looked up in, in C++ (device/include/opforge/abi/call_table.cpp).

Compiled once for this Python, and kept in the cache. Without a compiler, Python's headers, a place to keep it, or
DLPack's C exchange API (PyTorch has it from 2.10), there is none: calls are looked up in Python, with the same result.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from collections.abc import Callable
from functools import lru_cache
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any

import torch

from opforge.backends import native, torch_private
from opforge.backends.cpp import host_compiler
from opforge.core.errors import OpforgeError

SPREAD, WHOLE, BOUND, BOUND_ANYWAY = 0, 1, 2, 3
"""Kinds of calls: `call(*tensors, **extra)`; `call(tensors)`; `output = make(*extra)`, `call(*tensors, output)` while
autocast is off; the same with autocast on too, since most kernels compute in the dtype that they are given."""
_MODULE = "opforge_call_table"


@lru_cache(maxsize=1)
def _table_type() -> Any:
    """The extension type; None where it cannot be had."""
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
    return module.CallTable


def call_table(slow: Callable[..., Any]) -> Any:
    """`table(tensors, scalars)`: the call kept for that class of tensors and parameters, else `slow(tensors, scalars)`.
    None where there is no table.
    """
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    made = _table_type() if exchange is not None else None
    if made is None:
        return None
    quiet = (
        torch_private.transforms_active,
        torch_private.dispatch_modes,
        torch_private.tracing_state,
    )
    levels = vars(torch_private.forward_levels)
    try:
        return made(
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
        )
    except (TypeError, ValueError):
        return None
