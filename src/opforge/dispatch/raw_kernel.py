"""One backend's implementation as a callable, without asking for a Pass."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from opforge.backends import Missing, backend as find_backend
from opforge.core.definition.call_form import formed, taken
from opforge.core.definition.implementation import Implementation, Rejected
from opforge.core.definition.shapes import full_shape
from opforge.core.language.errors import EnvironmentLacks, UsageError, unknown
from opforge.dispatch.arguments import arranged, checked_scalars, fitting, misfit
from opforge.registry import load
from opforge.runner import bind


def raw_kernel(backend: str, operation: str, name: str = "") -> Callable[..., Any]:
    """See `opforge.get_kernel`."""
    registry = load()
    whole = registry.operator(operation)
    candidates = [
        item
        for item in registry.implementations(operation)
        if item.backend == find_backend(backend).name and name in ("", item.name)
    ]
    if not candidates:
        known = {item.name if name else item.backend for item in registry.implementations(operation)}
        raise unknown(f"{'implementation' if name else 'backend'} of {operation}", name or backend, known)

    def kernel(*tensors: Any, **scalars: Any) -> Any:
        import torch

        given, values = arranged(whole, tensors, scalars)
        flat, absent = taken(whole, given)
        operator = formed(whole, absent)
        if len(flat) != len(operator.inputs) or not all(isinstance(tensor, torch.Tensor) for tensor in flat):
            raise misfit(operator, flat, values)
        _interpret(candidates[0], flat[0].device.type)
        mode = find_backend(backend).execution_mode(flat[0].device.type)
        if isinstance(mode, Missing):
            raise EnvironmentLacks(f"{backend} cannot run on {flat[0].device.type} here: {mode}.")
        inputs = {spec.name: tensor for spec, tensor in zip(operator.inputs, flat, strict=True)}
        values = checked_scalars(operator, {**values, **absent})
        axes, dtype = fitting(operator, flat, values)
        outputs = {
            spec.name: _unwritten(
                full_shape(spec.shape, axes), getattr(torch, spec.dtype_for(dtype, values)), flat[0].device
            )
            for spec in operator.fresh
        }
        outputs |= {output: inputs[name] for name, output in operator.overwritten.items()}
        reasons: list[str] = []
        for implementation in candidates:
            try:
                launch = bind(operator, implementation, inputs, outputs, values, axes, dtype)
            except EnvironmentLacks as lacks:
                # the next may run on this machine
                if len(candidates) == 1:
                    raise
                reasons.append(str(lacks))
                continue
            if isinstance(launch, Rejected):
                reasons.append(f"{implementation.name}: {launch.reason}")
                continue
            launch.run()
            written = launch.read()
            results = tuple(written[spec.name] for spec in operator.fresh)
            return results[0] if len(results) == 1 else results or None
        raise UsageError(f"No {backend} implementation of {operation} takes this call. {'; '.join(reasons)}.")

    return kernel


def _interpret(item: Implementation, device: str) -> None:
    """On a CPU a Triton kernel is interpreted, by an interpreter that is mended first. Where Triton was imported for a
    GPU already, it stays as it is, and the backend says so.
    """
    if item.backend == "triton" and device == "cpu" and _interpretable():
        import opforge.backends.triton_interpreter  # noqa: F401


def _interpretable() -> bool:
    return "triton" not in sys.modules or os.environ.get("TRITON_INTERPRET") == "1"


def _unwritten(shape: Sequence[int], dtype: Any, device: Any) -> Any:
    """Memory of NaN, or of the least value of a format that has none."""
    import torch

    filling = float("nan") if dtype.is_floating_point else 0 if dtype == torch.bool else torch.iinfo(dtype).min
    return torch.full(tuple(shape), filling, dtype=dtype, device=device)
