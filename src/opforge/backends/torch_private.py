"""Every private name of PyTorch that opforge rests on, each with what replaces it where a torch lacks it.

Tested with torch 2.11.0 and 2.13.0. Names are looked up once, when this module is imported, and are then PyTorch's own
functions: a call pays for no detour. What stands in is right and may be slow: where nobody can tell whether a call is
watched or transformed, it counts as one that is, and goes the way of the custom operator or of the reference.

This module imports torch: where that is not loaded already, import it inside of a function.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from functools import reduce, wraps
from types import SimpleNamespace
from typing import Any

import torch
from torch.autograd import forward_ad as _forward_ad

TESTED = ("2.11.0", "2.13.0")
"""The oldest and the newest torch that opforge was tested with."""
_MISSING = object()


def _private(path: str) -> Any:
    """What `torch.PATH` is, or _MISSING."""
    return reduce(lambda place, name: getattr(place, name, _MISSING), path.split("."), torch)  # type: ignore[arg-type]


def _or(path: str, instead: Any) -> Any:
    """What `torch.PATH` is, or `instead`."""
    held = _private(path)
    return instead if held is _MISSING else held


# --- what is asked at every call

any_autocast: Callable[[], bool] = _or(
    "_C._is_any_autocast_enabled", lambda: any(torch.is_autocast_enabled(kind) for kind in ("cuda", "cpu"))
)
"""Whether autocast is on for any device."""


def autocast_devices() -> tuple[str, ...]:
    """The kinds of devices that have an autocast of their own in this torch; no build names them, so each is asked."""
    found = []
    for kind in ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "maia", "xla", "ipu", "privateuseone"):
        with contextlib.suppress(RuntimeError):
            torch.is_autocast_enabled(kind)
            found.append(kind)
    return tuple(found)


transforms_active: Callable[[], bool] = _or("_C._are_functorch_transforms_active", lambda: True)
"""Whether a transform of torch.func is at work; without the name, every call goes to the custom operator."""
dispatch_modes: Callable[[], int] = _or("_C._len_torch_dispatch_stack", lambda: 1)
"""How many dispatch modes are on; without the name, every call goes to the custom operator."""
tracing_state: Callable[[], Any] = _or("_C._get_tracing_state", torch.jit.is_tracing)
"""What torch.jit.trace has under way; None or False outside of it."""
forward_levels: Any = _forward_ad if hasattr(_forward_ad, "_current_level") else SimpleNamespace(_current_level=0)
"""`_current_level` is 0 or more inside of forward-mode differentiation; without the name, it always is, and calls
follow the reference."""
VMAP_KEY: Any = _or("_C._dispatch_key_parse", lambda name: None)("VmapMode")
key_is_included: Callable[[Any], bool] = (
    _or("_C._dispatch_tls_is_dispatch_key_included", lambda key: True) if VMAP_KEY is not None else lambda key: True
)
"""`key_is_included(VMAP_KEY)`: whether autograd runs its graph for many gradients at once, in the vmap that is older
than torch.func, which knows nothing of it. Without the names, gradients go the way that serves both."""
empty_strided_cpu: Callable[..., torch.Tensor] | None = _or("_C._dynamo.guards._empty_strided_cpu", None)
"""empty_strided_cpu(shape, strides, dtype): what Inductor's own programs allocate with, past the dispatcher, for half
of what torch.empty_like costs. Without it: None, and callers take torch.empty_like."""
empty_strided_cuda: Callable[..., torch.Tensor] | None = _or("_C._dynamo.guards._empty_strided_cuda", None)
"""The same on the GPU that is current."""
current_gpu: Callable[[], int] = _or("_C._cuda_getDevice", torch.cuda.current_device)
"""The index of the GPU that is current, without a look at whether CUDA is ready."""
current_stream: Callable[[int], int] = _or(
    "_C._cuda_getCurrentRawStream", lambda device: torch.cuda.current_stream(device).cuda_stream
)
"""The address of a GPU's current stream."""
in_bad_fork: Callable[[], bool] = _or("_C._cuda_isInBadFork", lambda: False)
"""Whether this process was forked from one that had CUDA begun. Builds for CPUs lack it: they begin none."""


_interpreters: Callable[[], Any] | None = _or("_C._functorch.get_interpreter_stack", None)
_kinds: Any = _or("_C._functorch.TransformType", None)
_differentiating = tuple(
    getattr(_kinds, name) for name in ("Grad", "Jvp") if _kinds is not None and hasattr(_kinds, name)
)


def differentiated() -> bool:
    """Whether torch.func.grad, vjp, jvp or their like are at work: they cannot see into a custom operator. Without the
    names every watched call counts as differentiated, and follows the reference."""
    if _interpreters is None or len(_differentiating) < 2:
        return True
    return any(level.key() in _differentiating for level in _interpreters() or ())


# asked by torch.compile while it traces, whose levels are those of the call
differentiated._dynamo_marked_constant = True  # type: ignore[attr-defined]


_function_base: Any = _private("_C._FunctionBase")


SAVES_DIRECTLY = _function_base is not _MISSING and hasattr(_function_base, "to_save")
"""Whether an autograd context has the attribute that its save_for_backward sets."""


def function_apply(kind: Any) -> Callable[..., Any]:
    """`apply` of an autograd.Function without the questions about torch.func that it asks first; without the name, its
    own.
    """
    if _function_base is _MISSING or not issubclass(kind, _function_base):
        return kind.apply  # type: ignore[no-any-return]
    return super(torch.autograd.Function, kind).apply  # type: ignore[misc, no-any-return, arg-type, unused-ignore]


def with_autograd() -> contextlib.AbstractContextManager[Any] | None:
    """Inside of a custom operator, where PyTorch looks past autograd: as a caller has it, for this thread. None where
    the names are missing.
    """
    guard, excluded, included, keys = (
        _private(f"_C.{name}")
        for name in (
            "_ForceDispatchKeyGuard",
            "_dispatch_tls_local_exclude_set",
            "_dispatch_tls_local_include_set",
            "DispatchKey",
        )
    )
    if _MISSING in (guard, excluded, included, keys) or not hasattr(keys, "AutogradFunctionality"):
        return None
    found: contextlib.AbstractContextManager[Any] = guard(included(), excluded().remove(keys.AutogradFunctionality))
    return found


# --- torch.compile and its parts


def _module(name: str) -> Any:
    """A private module of torch, or None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def limit_recompilations(most: int) -> bool:
    """Let torch.compile compile a function up to `most` times, and raise past that where it would silently run eager.
    False where this torch cannot be told so.
    """
    config: Any = getattr(_module("torch._dynamo"), "config", None)
    if not (hasattr(config, "fail_on_recompile_limit_hit") and hasattr(config, "recompile_limit")):
        return False
    config.fail_on_recompile_limit_hit = True
    config.recompile_limit = most
    return True


def report_inductor(around: Callable[[], contextlib.AbstractContextManager[None]]) -> bool:
    """Let Inductor surround its compiler with `around()`, once in a process, the compiler of a backward pass that it
    puts off included. Dynamo's tracing, which follows a function's own loops, is not surrounded. False where this torch
    has no such places.
    """
    compile_fx = _module("torch._inductor.compile_fx")
    names = ("compile_fx", "_compile_fx_inner")
    if not all(hasattr(compile_fx, name) for name in names):
        return False

    def surrounded(compiler: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(compiler)
        def compile_inside(*args: Any, **kwargs: Any) -> Any:
            with around():
                return compiler(*args, **kwargs)

        compile_inside.reports = True  # type: ignore[attr-defined]
        return compile_inside

    for name in names:
        compiler = getattr(compile_fx, name)
        if not hasattr(compiler, "reports"):
            setattr(compile_fx, name, surrounded(compiler))
    return True


def keep_headers_in(folder: str) -> bool:
    """Let Inductor keep its precompiled headers in `folder`. False where this torch has no such folder: it compiles
    them with each kernel.
    """
    codecache = _module("torch._inductor.codecache")
    if not (hasattr(codecache, "_HEADER_DIR") and hasattr(codecache, "_HEADER_LOCK_DIR")):
        return False
    codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR = folder, f"{folder}/locks"
    return True


def warm_inductor(*, cpu: bool) -> None:
    """Import what Inductor imports at its first compilation; for a `cpu` let it also find out which vector instructions
    there are. What this torch lacks of it is found out later, by each process.
    """
    for part in ("codegen.cpp", "codegen.wrapper", "compile_fx", "cpu_vec_isa"):
        _module(f"torch._inductor.{part}")
    if not cpu:
        # on a processor with AMX it compiles, and starts a Python with torch, twice: no kernel of a GPU asks for it
        return
    found_out = getattr(_module("torch._inductor.cpu_vec_isa"), "valid_vec_isa_list", None)
    no_compiler = getattr(_module("torch._inductor.exc"), "InvalidCxxCompiler", RuntimeError)
    if found_out is not None:
        with contextlib.suppress(no_compiler):
            found_out()


# --- torch.library

packet_type: Any = type(torch.ops.aten.add)
"""torch._ops.OpOverloadPacket, without its name."""
overload_type: Any = type(torch.ops.aten.add.Tensor)
"""torch._ops.OpOverload, without its name."""
_definition: type | None = _or("_library.custom_ops.CustomOpDef", None)
operator_types: tuple[type, ...] = (overload_type, packet_type, *(() if _definition is None else (_definition,)))
"""What torch.library makes of an operator. Where the type of torch.library.custom_op's results is not known, they are
taken for ordinary functions."""
