"""A program run in torch, value by value: what generated code is held against, and what it must not be made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opforge.forge.program.ir import Program, Value


def evaluate(program: Program, inputs: Mapping[str, Any], parameters: Mapping[str, float]) -> dict[str, Any]:
    """The outputs of a program by name, in the dtype of the inputs.

    inputs   a tensor for each read, one dimension for each of its axes (a `*name` flattened to one)
    """
    import torch

    orders = dict(program.reads)
    sizes = {axis: inputs[name].shape[at] for name, axes in program.reads for at, axis in enumerate(axes)}
    first = next(iter(inputs.values()))
    # every value has all axes of the program here, those that it lacks with a size of 1
    values: list[Any] = []
    for value in program.values:
        match value.operation:
            case "const":
                values.append(first.new_tensor(value.number))
            case "parameter":
                values.append(first.new_tensor(parameters[value.text]))
            case "read":
                order = orders[value.text]
                moved = inputs[value.text].permute(*(order.index(axis) for axis in value.axes))
                values.append(moved.reshape([sizes[axis] if axis in order else 1 for axis in program.axes]))
            case _:
                values.append(_applied(value, program, [values[number] for number in value.arguments]))
    results: dict[str, Any] = {}
    for write in program.writes:
        value = values[write.value]
        full = torch.broadcast_to(value, [sizes[axis] if axis in write.axes else 1 for axis in program.axes])
        kept = full.reshape([sizes[axis] for axis in program.axes if axis in write.axes])
        present = [axis for axis in program.axes if axis in write.axes]
        results[write.name] = kept.permute(*(present.index(axis) for axis in write.axes))
    return results


def spread(program: Program, *, factor: float, shift: float) -> float:
    """How far apart an output's elements lie for inputs of N(shift, factor), relative to the largest of them; the least
    of all outputs.
    """
    import torch

    draw = torch.Generator().manual_seed(0)
    inputs = {
        name: shift + factor * torch.randn([9] * len(axes), generator=draw, dtype=torch.float64)
        for name, axes in program.reads
    }
    found = evaluate(program, inputs, dict(program.parameters)).values()
    kept = [output[output.isfinite()] for output in found]
    return min(float((one.max() - one.min()) / one.abs().max()) if one.numel() and one.any() else 0.0 for one in kept)


def _applied(value: Value, program: Program, given: list[Any]) -> Any:
    import torch

    if value.operation == "dot":
        return (given[0] * given[1]).sum(dim=program.axes.index(value.over), keepdim=True)
    if value.scans:
        found = getattr(torch, value.operation)(given[0], dim=program.axes.index(value.over))
        return found if isinstance(found, torch.Tensor) else found.values
    if value.reduces:
        at = program.axes.index(value.over)
        name = {"max": "amax", "min": "amin"}.get(value.operation, value.operation)
        return getattr(torch, name)(given[0], dim=at, keepdim=True)
    name = {"neg": "neg", "and": "logical_and", "or": "logical_or", "not": "logical_not"}.get(
        value.operation, value.operation
    )
    return getattr(torch, name)(*given)
