"""What Triton's interpreter has not: a kernel that needs it is not run, which says nothing against the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError
from triton.runtime.interpreter import GridExecutor, InterpretedFunction, InterpreterBuilder, TensorHandle

from opforge.backends import triton_libdevice, triton_syntax
from opforge.core.language.errors import EnvironmentLacks

_BESIDE = (__file__, str(Path(__file__).with_name("triton_interpreter.py")))


class NotInterpreted(EnvironmentLacks):
    """The interpreter lacks something that a compiled kernel has."""


OWN = (interpreter.__file__, triton_libdevice.__file__, triton_syntax.__file__, *_BESIDE)
"""Files of the interpreter: where one of them fails, the kernel that it interprets may be right."""
SAID_BY_THE_KERNEL = ("create_assert", "create_assume", "validate", "materialize_pointers", "set_grid_idx")
"""Functions of it that fail where the kernel is wrong."""


def lacking(what: str) -> NotInterpreted:
    """The error for a kernel that needs what the interpreter has not."""
    return NotInterpreted(
        f"Triton's interpreter has no {what}. Verify it on a GPU (--device cuda), or look at what it "
        "compiles to with: opforge inspect OPERATOR NAME --target sm_90"
    )


def _lack_behind(error: BaseException) -> str:
    """What the interpreter itself lacks, in words; "" where the error is the kernel's."""
    step, inner = error.__traceback__, None
    while step is not None:
        if not any(f"/{library}/" in step.tb_frame.f_code.co_filename for library in ("numpy", "torch")):
            inner = step.tb_frame.f_code
        step = step.tb_next
    if inner is None or inner.co_filename not in OWN or inner.co_name in SAID_BY_THE_KERNEL:
        return ""
    if isinstance(error, NotImplementedError):
        return str(error).partition(" not ")[0] or inner.co_name
    place = inner.co_name.removeprefix("create_").strip("<>")
    unsaid = isinstance(error, (AttributeError, KeyError)) or str(error).startswith(("Unsupported", "unsupported"))
    return f"{place} for this ({type(error).__name__}: {error})" if unsaid else ""


def _map_elementwise(function: InterpretedFunction[Any], *arguments: tl.tensor, pack: int = 1, **_: Any) -> Any:
    """`tl.map_elementwise`: of whole blocks, or of one element after another where the function asks `if` of them."""
    if pack != 1:
        raise lacking("map_elementwise of more than one element a call")
    blocks = np.broadcast_arrays(*(a.handle.data for a in arguments))

    def of(parts: Sequence[Any]) -> tuple[tl.tensor, ...]:
        made = function(*(_to_tensor(part, a.dtype) for part, a in zip(parts, arguments, strict=True)))
        return made if isinstance(made, tuple) else (made,)

    try:
        results = of(blocks)
    except InterpreterError as error:
        if not isinstance(error.__cause__, triton_syntax.Ambiguous):
            raise
        each = [of([block[at] for block in blocks]) for at in np.ndindex(blocks[0].shape)]
        results = tuple(
            _to_tensor(np.concatenate([result.handle.data for result in column]).reshape(blocks[0].shape), first.dtype)
            for column, first in zip(zip(*each, strict=True), each[0], strict=True)
        )
    return results if len(results) > 1 else results[0]


def _to_tensor(data: Any, dtype: Any) -> tl.tensor:
    data = np.asarray(data)
    kind = tl.block_type(dtype, list(data.shape)) if data.shape else dtype
    return tl.tensor(TensorHandle(np.atleast_1d(data), dtype), kind)


def _dot_scaled(*_: Any, **__: Any) -> Any:
    raise lacking("dot_scaled")


def install() -> None:
    """From now on a kernel that needs what is missing is not run."""

    def absent(self: Any, name: str) -> Any:
        if not name.startswith("_"):
            raise lacking(name.removeprefix("create_"))
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    patch = interpreter._patch_lang_core

    def patch_lang_core(lang: Any, scope: Any) -> None:
        patch(lang, scope)
        scope.set_attr(lang, "map_elementwise", _map_elementwise)
        scope.set_attr(lang, "dot_scaled", _dot_scaled)

    InterpreterBuilder.__getattr__ = absent
    interpreter._patch_lang_core = patch_lang_core
    execute = GridExecutor.__call__

    def run_grid(self: GridExecutor, *args: Any, **kwargs: Any) -> None:
        try:
            execute(self, *args, **kwargs)
        except InterpreterError as error:
            cause: BaseException = error
            while isinstance(cause, InterpreterError) and cause.__cause__ is not None:
                cause = cause.__cause__
            if isinstance(cause, NotInterpreted):
                raise cause from None
            if lack := _lack_behind(cause):
                raise lacking(lack) from cause
            raise

    GridExecutor.__call__ = run_grid
