"""The arguments of a call held against the operator's definition: how many, of which kind, shapes, dtypes, devices and
parameters. What does not fit is refused with what would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import torch

from opforge.core.definition.operator import Operator, ScalarValue, TensorSpec
from opforge.core.definition.shapes import Axes
from opforge.core.language.errors import UsageError


def fitting(
    operator: Operator, tensors: Sequence[torch.Tensor], scalars: Mapping[str, ScalarValue]
) -> tuple[Axes, str]:
    """The axes and the dtype of a call; raises UsageError where shapes, dtypes, devices or parameters do not fit
    the operator.
    """
    try:
        axes = operator.bind(
            {spec.name: tuple(tensor.shape) for spec, tensor in zip(operator.inputs, tensors, strict=True)}, scalars
        )
    except UsageError as error:
        raise UsageError(
            f"{operator.name}: {error} It takes {_signature(operator)}; see: opforge show {operator.name}"
        ) from error
    dtype = _dtype(operator, tensors)
    for spec, tensor in zip(operator.inputs, tensors, strict=True):
        if spec.dtype != "T" and str(tensor.dtype).removeprefix("torch.") != spec.dtype_for(dtype, scalars):
            wanted = spec.dtype_for(dtype, scalars)
            raise UsageError(
                f"{operator.name} takes {spec.name} as {wanted}, not {tensor.dtype}. Convert it with "
                f"{spec.name}.to(torch.{wanted})."
            )
    violated = operator.violated(axes, dtype, scalars)
    if violated is not None:
        raise UsageError(f"{operator.name}: {violated.name} does not hold ({violated.expression}): {violated.about}.")
    return axes, dtype


def _dtype(operator: Operator, tensors: Sequence[torch.Tensor]) -> str:
    names = {
        str(tensor.dtype).removeprefix("torch.")
        for spec, tensor in zip(operator.inputs, tensors, strict=True)
        if spec.dtype == "T"
    }
    if len(names) != 1:
        raise UsageError(
            f"{operator.name} takes tensors of one dtype, not {', '.join(sorted(names))}. Convert them first, "
            "e.g. x.to(y.dtype)."
        )
    (name,) = names
    if name not in operator.dtypes:
        raise UsageError(
            f"{operator.name} takes {', '.join(operator.dtypes)}, not {name}. Convert it, e.g. with "
            f"x.to(torch.{operator.dtypes[0]})."
        )
    if len({tensor.device for tensor in tensors}) != 1:
        raise UsageError(
            f"{operator.name} takes tensors on one device, not "
            f"{', '.join(sorted({str(tensor.device) for tensor in tensors}))}. Move them to one, e.g. x.to(y.device)."
        )
    return name


def arranged(
    operator: Operator, tensors: Sequence[Any], named: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, ScalarValue]]:
    """An argument for each input, None where it is not given, and the parameters."""
    scalars = dict(named)
    rest = operator.inputs[len(tensors) :]
    given = (*tensors, *(scalars.pop(spec.name, None) for spec in rest))
    wrong = [scalar.name for scalar in operator.presence if scalar.name in scalars]
    if wrong:
        raise UsageError(
            f"{operator.name}: {', '.join(wrong)} says itself what is given. Give None for what is not: "
            f"{wrong[0].removeprefix('has_')}=None."
        )
    needed = [value for spec, value in zip(operator.inputs, given, strict=False) if not spec.optional]
    if len(tensors) > len(operator.inputs) or any(value is None for value in needed):
        raise misfit(operator, tensors, scalars)
    lengths: dict[str, int] = {}
    for spec, value in zip(operator.inputs, given, strict=True):
        if spec.many is not None:
            _check_list(operator, spec, value)
            if lengths.setdefault(spec.many, len(value)) != len(value):
                first = next(other.name for other in operator.inputs if other.many == spec.many)
                raise UsageError(
                    f"{operator.name} takes lists of one length, not {lengths[spec.many]} of {first} and {len(value)} "
                    f"of {spec.name}."
                )
    return given, scalars


def _check_list(operator: Operator, spec: TensorSpec, value: Any) -> None:
    axes = len(spec.shape.split())
    if (
        not isinstance(value, list | tuple)
        or not value
        or not all(isinstance(item, torch.Tensor) and item.ndim == axes for item in value)
    ):
        raise UsageError(
            f"{operator.name} takes {spec.name} as a list of tensors [{spec.shape}], at least one, not "
            f"{' '.join(repr(value).split()):.60}. Write {spec.name}=[a, b]."
        )


def check_overwritten(operator: Operator, tensors: Sequence[torch.Tensor]) -> None:
    """Raises UsageError for a tensor that cannot be overwritten: one of a graph, or one whose elements share addresses.
    The inputs of an operator that overwrites none are not looked at.
    """
    if not operator.overwritten:
        return
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise UsageError(
            f"{operator.name} overwrites {', '.join(operator.overwritten)}, and has no gradient. Call it under "
            "torch.no_grad(), as an optimiser does, or on tensors without requires_grad: x.detach()."
        )
    for spec, tensor in zip(operator.inputs, tensors, strict=True):
        if spec.name in operator.overwritten and any(
            step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)
        ):
            raise UsageError(
                f"{operator.name} overwrites {spec.name}, whose elements share addresses (strides {tensor.stride()}). "
                f"Give it memory of its own: {spec.name}.clone()."
            )


def overwritten_places(operator: Operator) -> list[int]:
    """The places of the inputs that a call overwrites."""
    overwritten = operator.overwritten
    return [place for place, spec in enumerate(operator.inputs) if spec.name in overwritten]


def misfit(operator: Operator, tensors: Sequence[Any], scalars: Mapping[str, Any]) -> UsageError:
    """What is wrong with arguments that are too many, too few, or no tensors in plain memory; or with parameters
    that are no plain values.
    """
    count = len(operator.inputs)
    wanted = (
        f"{operator.name} takes {count} tensor{'' if count == 1 else 's'} "
        f"({', '.join(spec.name + (' or None' if spec.optional else '') for spec in operator.inputs)})"
    )
    strange = [tensor for tensor in tensors if not isinstance(tensor, torch.Tensor)]
    if strange:
        by_name = (
            f"; parameters go by name: {', '.join(f'{scalar.name}={scalar.default!r}' for scalar in operator.scalars)}"
            if operator.scalars
            else ""
        )
        plain = isinstance(strange[0], list | tuple | float | int) or type(strange[0]).__module__ == "numpy"
        remedy = "Make a tensor of it, torch.as_tensor(…)" if plain else "Give tensors in its place"
        return UsageError(
            f"{wanted}, and {' '.join(repr(strange[0]).split()):.60} is a {type(strange[0]).__name__}{by_name}. "
            f"{remedy}; see: opforge show {operator.name}"
        )
    if len(tensors) != len(operator.inputs):
        return UsageError(f"{wanted}, not {len(tensors)}. Give them in this order; see: opforge show {operator.name}")
    inputs = {spec.name for spec in operator.inputs}
    for name, value in scalars.items():
        if name in inputs:
            return UsageError(f"{operator.name}: {name} is given twice, by its place and by its name. Give it once.")
        if name not in {scalar.name for scalar in (*operator.scalars, *operator.presence)}:
            return UsageError(
                f"{operator.name} has no parameter {name!r}. It takes: "
                f"{', '.join(scalar.name for scalar in operator.scalars) or 'none: leave it away'}. See: opforge show "
                f"{operator.name}"
            )
        if not isinstance(value, bool | int | float | str):
            return UsageError(
                f"{operator.name}: {name} is a {type(value).__name__}; it takes a plain value. See: opforge show "
                f"{operator.name}"
            )
    layouts = {str(tensor.layout) for tensor in tensors} - {"torch.strided"}
    return UsageError(
        f"{wanted} in plain memory, not {', '.join(sorted(layouts)) or 'these'}. Convert them first, e.g. with "
        "x.to_dense() or x.to_padded_tensor(0.0)."
    )


def checked_scalars(operator: Operator, given: Mapping[str, ScalarValue]) -> dict[str, ScalarValue]:
    """Every parameter's value, of the kind that its default has; raises UsageError for another kind."""
    values = operator.scalar_values(given)
    for scalar in operator.scalars:
        value, kind = values[scalar.name], type(scalar.default)
        if kind is int and isinstance(value, torch.SymInt):
            continue  # a seed of a graph in the making: PyTorch up to 2.11 traces a backward pass with it
        if kind is float and isinstance(value, Real) and not isinstance(value, bool):
            values[scalar.name] = float(value)
        elif type(value) is not kind:
            raise UsageError(
                f"{operator.name}: {scalar.name} is {value!r:.60}, a {type(value).__name__}; it takes a "
                f"{kind.__name__}, e.g. {scalar.name}={scalar.default!r}."
            )
        elif kind is int and not -(2**63) <= int(value) < 2**63:
            raise UsageError(
                f"{operator.name}: {scalar.name} is {value}; it takes 64 bits with a sign. Leave its upper "
                f"ones away: {scalar.name} % 2**63."
            )
    return values


def _signature(operator: Operator) -> str:
    return ", ".join(f"{spec.name} ({spec.shape})" for spec in operator.inputs)
