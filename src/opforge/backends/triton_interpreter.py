"""Make Triton 3.6.0's interpreter trustworthy enough to verify kernels on a CPU.

Import this module (or call :func:`install`) instead of setting ``TRITON_INTERPRET``
by hand, before anything imports ``triton``.  It repairs, in this process only:

* run-time loop bounds, ``range(0, n)``, which fail with numpy 2.4 and later;
* bfloat16: conversions truncate, and arithmetic, reductions and ``tl.dot`` work on
  the raw 16-bit patterns; here each operation computes in float32 and rounds to even;
* float8 e4m3 and e5m2 rounding (to nearest even, saturating, as on NVIDIA GPUs), and ``tl.dot``
  of them, which loses e5m2's numbers below 2^-14 and takes e4m3's NaN for 480;
* ``libdevice`` functions, which return ``None`` (``triton_libdevice``);
* what Python decides otherwise than the compiler: ``and`` of masks, loops' variables, numbers given as arguments
  (``triton_syntax``);
* bfloat16 atomics, which are refused;
* what is still missing: a kernel that needs it is not run, instead of wrong;
* ``@triton.autotune``, which needs a GPU: the first configuration is taken;
* speed: ``tl.sum``, ``tl.max`` and other helpers patch the language once a launch, not
  at every call (row softmax runs about twice as fast); reductions by a kernel's own function
  take whole slices.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
    raise ImportError("import interp_fixes before triton: TRITON_INTERPRET is read at import")
os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import InterpreterError
from triton.runtime.interpreter import (
    GridExecutor,
    InterpretedFunction,
    InterpreterBuilder,
    ReduceOps,
    ScanOps,
    TensorHandle,
)

from opforge.backends import compile_phase, grid_limits, triton_lacks, triton_libdevice, triton_syntax
from opforge.backends.triton_lacks import NotInterpreted

# --------------------------------------------------------------------------- conversions

_TORCH_F8 = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}


def bf16_to_f32(bits: Any) -> Any:
    """Widen bfloat16 bit patterns (uint16)."""
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(values: Any, nearest: bool = True) -> Any:
    """Narrow to bfloat16 bit patterns (uint16), to nearest even or towards zero."""
    values = np.asarray(values, np.float32)
    bits = np.atleast_1d(values).view(np.uint32)
    rounded = bits + (0x7FFF + ((bits >> 16) & 1)) if nearest else bits
    out = (rounded >> 16).astype(np.uint16)
    out = np.where(np.isnan(np.atleast_1d(values)), np.uint16(0x7FC0), out)
    return out.reshape(values.shape)


def _is_bf16(handle: TensorHandle) -> bool:
    # The result of a comparison keeps its operands' dtype but holds booleans.
    return bool(handle.dtype.scalar == tl.bfloat16 and handle.data.dtype == np.uint16)


def _widen(handle: TensorHandle) -> TensorHandle:
    return TensorHandle(bf16_to_f32(handle.data), tl.float32, handle.attr) if _is_bf16(handle) else handle


def _f8_to_f32(handle: TensorHandle) -> Any:
    bits = torch.from_numpy(np.ascontiguousarray(handle.data))
    return bits.view(_TORCH_F8[handle.dtype.scalar]).float().numpy()


def _factor(handle: TensorHandle) -> TensorHandle:
    """An operand of ``tl.dot``; float16 holds every float8."""
    if handle.dtype.scalar in _TORCH_F8:
        return TensorHandle(_f8_to_f32(handle).astype(np.float16), tl.float16, handle.attr)
    return _widen(handle)


def _narrow(handle: TensorHandle) -> TensorHandle:
    if handle.data.dtype == np.bool_:
        return TensorHandle(handle.data, tl.bfloat16)
    return TensorHandle(f32_to_bf16(handle.data), tl.bfloat16)


def _fix_casts() -> None:
    cast_impl = InterpreterBuilder.cast_impl
    fp_to_fp = InterpreterBuilder.create_fp_to_fp

    def cast(self: Any, src: TensorHandle, dst_type: Any) -> TensorHandle:
        if dst_type.scalar == tl.bfloat16 and src.dtype.scalar != tl.bfloat16:
            return TensorHandle(f32_to_bf16(src.data.astype(np.float32)), tl.bfloat16)
        return cast_impl(self, _widen(src), dst_type)

    def convert(self: Any, src: TensorHandle, dst_type: Any, rounding_mode: Any) -> TensorHandle:
        src_ty, dst_ty = src.dtype.scalar, dst_type.scalar
        nearest = rounding_mode is None or rounding_mode == interpreter._ir.ROUNDING_MODE.RTNE
        if src_ty in _TORCH_F8:
            return convert(self, TensorHandle(_f8_to_f32(src), tl.float32), dst_type, rounding_mode)
        if dst_ty == tl.bfloat16:
            return TensorHandle(f32_to_bf16(_widen(src).data.astype(np.float32), nearest), tl.bfloat16)
        if dst_ty in _TORCH_F8 and nearest:
            f8 = _TORCH_F8[dst_ty]
            limit = torch.finfo(f8).max
            # clipped by numpy: a tensor operation here would count as one of the kernel's
            wide = torch.from_numpy(np.clip(np.array(_widen(src).data, np.float32), -limit, limit))
            bits = wide.to(f8).view(torch.uint8).numpy()
            return TensorHandle(bits, dst_ty)
        if dst_ty in (tl.float16, tl.float32, tl.float64) and nearest:
            return cast(self, src, dst_type)
        return fp_to_fp(self, src, dst_type, rounding_mode)

    InterpreterBuilder.cast_impl = cast
    InterpreterBuilder.create_fp_to_fp = convert


# --------------------------------------------------------------------------- arithmetic


def _fix_arithmetic() -> None:
    binary, unary, ternary = InterpreterBuilder.binary_op, InterpreterBuilder.unary_op, InterpreterBuilder.ternary_op
    dot, fma = InterpreterBuilder.create_dot, InterpreterBuilder.create_fma

    def binary_op(self: Any, lhs: TensorHandle, rhs: TensorHandle, op: Callable[..., Any]) -> TensorHandle:
        if _is_bf16(lhs) and _is_bf16(rhs) and not op.__name__.startswith("bitwise_"):
            return _narrow(binary(self, _widen(lhs), _widen(rhs), op))
        return binary(self, lhs, rhs, op)

    def unary_op(self: Any, arg: TensorHandle, op: Callable[..., Any]) -> TensorHandle:
        return _narrow(unary(self, _widen(arg), op)) if _is_bf16(arg) else unary(self, arg, op)

    def ternary_op(
        self: Any, a: TensorHandle, b: TensorHandle, c: TensorHandle, op: Callable[..., Any]
    ) -> TensorHandle:
        if op is not np.where and _is_bf16(a) and _is_bf16(b):
            return _narrow(ternary(self, _widen(a), _widen(b), _widen(c), op))
        return ternary(self, a, b, c, op)

    def create_dot(self: Any, a: TensorHandle, b: TensorHandle, d: TensorHandle, *rest: Any) -> TensorHandle:
        return dot(self, _factor(a), _factor(b), d, *rest)

    def create_fma(self: Any, x: TensorHandle, y: TensorHandle, z: TensorHandle) -> TensorHandle:
        if _is_bf16(x):
            return _narrow(fma(self, _widen(x), _widen(y), _widen(z)))
        return fma(self, x, y, z)

    def get_bf16(self: Any, value: float) -> TensorHandle:
        return TensorHandle(f32_to_bf16(np.array([value], np.float32)), tl.bfloat16)

    InterpreterBuilder.binary_op = binary_op
    InterpreterBuilder.unary_op = unary_op
    InterpreterBuilder.ternary_op = ternary_op
    InterpreterBuilder.create_dot = create_dot
    InterpreterBuilder.create_fma = create_fma
    InterpreterBuilder.get_bf16 = get_bf16


def _fix_reductions() -> None:
    def through_f32(cls: type[Any]) -> None:
        plain = cls.apply_impl

        def apply_impl(self: Any, inputs: tuple[tl.tensor, ...]) -> Any:
            if not any(_is_bf16(t.handle) for t in inputs):
                return plain(self, inputs)
            wide = tuple(self.to_tensor(_widen(t.handle).data, _widen(t.handle).dtype) for t in inputs)
            out = plain(self, wide)
            single = not isinstance(out, (list, tuple))
            outs = [out] if single else list(out)
            for i, (old, new) in enumerate(zip(inputs, outs, strict=False)):
                if _is_bf16(old.handle):
                    outs[i] = self.to_tensor(f32_to_bf16(new.handle.data), tl.bfloat16)
                    if not new.type.is_block():
                        outs[i] = tl.tensor(outs[i].handle, tl.bfloat16)
            return outs[0] if single else outs

        cls.apply_impl = apply_impl

    through_f32(ReduceOps)
    through_f32(ScanOps)
    ReduceOps.generic_reduce = _by_slices(ReduceOps.generic_reduce, scan=False)
    ScanOps.generic_scan = _by_slices(ScanOps.generic_scan, scan=True)


def _by_slices(one_by_one: Callable[..., Any], *, scan: bool) -> Callable[..., Any]:
    """A reduction or scan by a function of the kernel's: of whole slices, one step for each index of the axis, where
    the function takes them; of one element after another where it asks `if` of them.
    """

    def combined(self: Any, inputs: tuple[tl.tensor, ...]) -> Any:
        function = self.combine_fn
        combine = function.rewrite() if isinstance(function, InterpretedFunction) else function.fn
        shape = inputs[0].handle.data.shape
        axis = self.axis
        if axis is None or len(shape) < 2:
            self.combine_fn = types.SimpleNamespace(fn=combine)
            return one_by_one(self, inputs)
        axis %= len(shape)
        try:
            steps = [
                tuple(self.to_tensor(np.take(t.handle.data, i, axis), t.dtype) for t in inputs)
                for i in range(shape[axis])
            ]
            kept = [steps[0]]
            for step in steps[1:]:
                result = combine(*kept[-1], *step)
                kept.append(result if isinstance(result, tuple) else (result,))
                if not scan:
                    kept = kept[-1:]
        except triton_syntax.Ambiguous:
            self.combine_fn = types.SimpleNamespace(fn=combine)
            return one_by_one(self, inputs)
        if scan:
            return [
                self.to_tensor(np.stack([step[j].handle.data for step in kept], axis), t.dtype)
                for j, t in enumerate(inputs)
            ]
        results = [np.asarray(result.handle.data) for result in kept[0]]
        if self.keep_dims:
            results = [np.expand_dims(result, axis) for result in results]
        return [self.to_tensor(result, t.dtype) for result, t in zip(results, inputs, strict=True)]

    return combined


def _fix_atomics() -> None:
    plain, operations = InterpreterBuilder.create_atomic_rmw, interpreter._ir.ATOMIC_OP

    def atomic(
        self: Any, operation: Any, ptr: TensorHandle, val: TensorHandle, mask: TensorHandle, sem: Any, scope: Any
    ) -> TensorHandle:
        if operation == operations.XCHG and val.data.dtype.itemsize >= 4:
            # of bits, whatever they mean
            bits = val.data.view(np.dtype(f"uint{8 * val.data.dtype.itemsize}"))
            old = plain(self, operation, ptr, TensorHandle(bits, val.dtype), mask, sem, scope)
            return TensorHandle(old.data.view(val.data.dtype), val.dtype.scalar)
        if operation != operations.XCHG and not (_is_bf16(val) and operation == operations.FADD):
            return plain(self, operation, ptr, val, mask, sem, scope)
        # 16 bits, one lane after another: two of them may have the same address
        given = np.broadcast_arrays(ptr.data, val.data, mask.data)
        places, values, wanted = (np.ascontiguousarray(part).reshape(-1) for part in given)
        before: Any = np.zeros_like(values)
        yes: Any = np.ones(1, np.bool_)
        for lane in np.flatnonzero(wanted):
            one = slice(lane, lane + 1)
            old = interpreter._interpreter.load(places[one], yes, values[one], values.dtype)
            new = (
                values[one]
                if operation == operations.XCHG
                else f32_to_bf16(bf16_to_f32(old) + bf16_to_f32(values[one]))
            )
            interpreter._interpreter.store(places[one], np.ascontiguousarray(new), yes)
            before[one] = old
        return TensorHandle(before.reshape(np.shape(given[1])), val.dtype.scalar)

    InterpreterBuilder.create_atomic_rmw = atomic


def _fix_index() -> None:
    patch = interpreter._patch_lang_tensor

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_lang_tensor


# --------------------------------------------------------------------------- autotuning


def _fix_autotune() -> None:
    def run(self: Autotuner, *args: Any, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        candidates: Sequence[Any] = self.prune_configs(kwargs)
        self.best_config = candidates[0]
        full = {**self.nargs, **kwargs, **self.best_config.all_kwargs()}
        self.pre_hook(full, reset_only=True)
        if self.best_config.pre_hook is not None:
            self.best_config.pre_hook(full)
        return self.fn.run(*args, **kwargs, **self.best_config.all_kwargs())

    Autotuner.run = run


# --------------------------------------------------------------------------- speed


def _fix_speed() -> None:
    patched: set[frozenset[int]] = set()
    execute = GridExecutor.__call__

    def run_grid(self: GridExecutor, *args: Any, **kwargs: Any) -> None:
        patched.clear()
        try:
            execute(self, *args, **kwargs)
        finally:
            patched.clear()

    def call(self: InterpretedFunction[Any], *args: Any, **kwargs: Any) -> Any:
        languages = frozenset(id(v) for v in self.fn.__globals__.values() if v is tl or v is tl.core)
        if languages not in patched:
            interpreter._patch_lang(self.fn)
            patched.add(languages)
        try:
            return self.rewrite()(*args, **kwargs)
        except (InterpreterError, NotInterpreted):
            raise
        except Exception as error:
            raise InterpreterError(repr(error)) from error

    begin = InterpreterBuilder.set_grid_idx

    def begin_program(self: Any, x: int, y: int, z: int) -> None:
        compile_phase.got_on()
        begin(self, x, y, z)

    dimensions = InterpreterBuilder.set_grid_dim

    def set_grid(self: Any, *grid: int) -> None:
        if (error := grid_limits.too_large(grid, "its kernel")) is not None:
            raise error
        dimensions(self, *grid)

    InterpreterBuilder.set_grid_idx = begin_program
    InterpreterBuilder.set_grid_dim = set_grid
    GridExecutor.__call__ = run_grid
    InterpretedFunction.__call__ = call


_installed = False


def install() -> None:
    """Apply the repairs once."""
    global _installed
    if not _installed:
        _installed = True
        for fix in (
            _fix_casts,
            _fix_arithmetic,
            _fix_reductions,
            _fix_index,
            _fix_atomics,
            triton_lacks.install,
            triton_libdevice.install,
            triton_syntax.install,
            _fix_autotune,
            _fix_speed,
        ):
            fix()


install()
