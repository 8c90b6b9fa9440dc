"""One backend's implementation as a callable, without asking for a Pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opforge.backends import Missing, backend as find_backend
from opforge.core.call_form import formed, taken
from opforge.core.errors import EnvironmentLacks, UsageError, unknown
from opforge.core.implementation import Rejected
from opforge.core.shapes import full_shape
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

        given = (*tensors, *(None for _ in whole.inputs[len(tensors) :]))
        tensors, absent = taken(whole, given)
        operator = formed(whole, absent)
        if len(given) != len(whole.inputs) or len(tensors) != len(operator.inputs):
            raise UsageError(
                f"{operation} takes {len(operator.inputs)} tensors "
                f"({', '.join(spec.name for spec in operator.inputs)}), not {len(tensors)}."
            )
        if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            raise UsageError(
                f"{operation} takes tensors ({', '.join(spec.name for spec in operator.inputs)}), not "
                f"{', '.join(type(tensor).__name__ for tensor in tensors)}."
            )
        mode = find_backend(backend).execution_mode(tensors[0].device.type)
        if isinstance(mode, Missing):
            raise EnvironmentLacks(f"{backend} cannot run on {tensors[0].device.type} here: {mode}.")
        inputs = {spec.name: tensor for spec, tensor in zip(operator.inputs, tensors, strict=True)}
        values = operator.scalar_values({**scalars, **absent})
        axes = operator.bind({key: tuple(tensor.shape) for key, tensor in inputs.items()}, values)
        dtype = next(
            (
                str(tensor.dtype).removeprefix("torch.")
                for spec, tensor in zip(operator.inputs, tensors, strict=True)
                if spec.dtype == "T"
            ),
            operator.dtypes[0],
        )
        if dtype not in operator.dtypes:
            raise UsageError(f"{operation} takes {', '.join(operator.dtypes)}, not {dtype}.")
        outputs = {
            spec.name: torch.full(
                full_shape(spec.shape, axes),
                float("nan"),
                dtype=getattr(torch, spec.dtype_for(dtype, values)),
                device=tensors[0].device,
            )
            for spec in operator.fresh
        }
        outputs |= {output: inputs[name] for name, output in operator.overwritten.items()}
        reasons: list[str] = []
        for implementation in candidates:
            launch = bind(operator, implementation, inputs, outputs, values, axes, dtype)
            if isinstance(launch, Rejected):
                reasons.append(f"{implementation.name}: {launch.reason}")
                continue
            launch.run()
            written = launch.read()
            results = tuple(written[spec.name] for spec in operator.fresh)
            return results[0] if len(results) == 1 else results or None
        raise UsageError(f"No {backend} implementation of {operation} takes this call. {'; '.join(reasons)}.")

    return kernel
