"""Definitions of flashinfer-trace and SOL-ExecBench, and operators of BackendBench, as definitions of opforge: their
PyTorch is traced on small sizes, in a process of its own, and their workloads' sizes become workloads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from opforge.core.language.errors import UsageError
from opforge.forge.program.definition import DTYPES, TAKEN, Definition, NamedWorkload, definition_of
from opforge.forge.program.families import WAY_OUT
from opforge.forge.program.lower import CONSTANTS, FUNCTIONS
from opforge.forge.read.apart import apart
from opforge.forge.suites.formats import nouns
from opforge.forge.suites.formats.call_lines import Call, OperatorCalls, TensorArgument, arguments_text
from opforge.forge.suites.formats.nouns import ConstAxis, ScalarInput, TaskSet
from opforge.forge.suites.kernelbench import with_laptop
from opforge.forge.suites.task_fields import MOST, operator_fields, reference_fields, tensors_of


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A foreign task as a definition of opforge.

    inputs    the names of its inputs that are the task's inputs, by the task's names, in the order it calls them; a
              number stands for itself
    outputs   its outputs' names in the task's order
    fixed     axes whose size the task says for all workloads
    left_out  what was not taken, each with the reason
    """

    definition: Definition
    inputs: Mapping[str, str | float | int | bool]
    outputs: tuple[str, ...]
    fixed: Mapping[str, int]
    left_out: tuple[str, ...] = ()


AXES_TOO = {"rows", "cols", "row", "col", "n"} & TAKEN
"""Names that mean something in generated code, and may name an axis all the same."""


def name_for(task: str) -> str:
    """An operator's name for a task's.

    >>> name_for("aten.add.Tensor")
    'aten_add_tensor'
    """
    plain = re.sub(r"\W+", "_", task).strip("_").lower()
    return plain if plain and plain[0].isalpha() else f"task_{plain}"


def read_task_set(task: TaskSet, name: str) -> Reading:
    """The Reading of a definition with its workloads, for an operator called `name`. Raises UsageError with the reason
    where opforge has no such operator.
    """
    given, where = task.definition, task.where or task.definition.name
    dtype = _one_dtype({**given.inputs, **given.outputs}, where)
    arguments = _arguments(task, where)
    found = apart(reference_fields, where, name, given.reference, arguments, _attempts(given, where))
    shapes = {key: tensor.shape or () for key, tensor in given.inputs.items()}
    fields = _renamed(found["fields"], found["sources"], shapes, list(given.outputs))
    definition = definition_of({**fields, "dtypes": [dtype]}, name, where)
    names = {source: item for item, source in found["sources"].items() if item in fields["inputs"]}
    axes_of = {item: shapes[source] for source, item in names.items()}
    workloads, left_out = _workloads(task, definition, axes_of, where)
    inputs = {
        one["name"]: one["value"] if one["axes"] is None else names[one["name"]]
        for one in arguments
        if one["axes"] is None or one["name"] in names
    }
    unread = [one["name"] for one in arguments if one["axes"] is not None and one["name"] not in names]
    if unread:
        raise UsageError(f"{where}: the reference does not read {unread[0]}. {WAY_OUT}")
    fixed: dict[str, int] = {}
    for item in definition.inputs:
        for axis, theirs in zip(item.axes, axes_of[item.name], strict=True):
            said = given.axes.get(theirs)
            if isinstance(said, ConstAxis):
                fixed[axis] = said.value
    about = given.description or f"{given.name} of {task.form}"
    return Reading(
        definition=replace(definition, about=" ".join(about.split()), workloads=workloads),
        inputs=inputs,
        outputs=tuple(fields["outputs"]),
        fixed=fixed,
        left_out=tuple(left_out),
    )


def read_operator(of: OperatorCalls, name: str, where: str) -> Reading:
    """The Reading of an operator of ATen with the calls that models make of it. Calls of one structure (the arguments
    but for sizes) are one operator: that with most calls is taken. Raises UsageError.
    """
    groups: dict[str, list[Call]] = {}
    left_out: list[str] = []
    for call in of.calls:
        reason = _unfit(call)
        if reason:
            left_out.append(f"{call.written()[:80]}: {reason}")
        else:
            groups.setdefault(_structure(call), []).append(call)
    if not groups:
        why = left_out[0] if left_out else "it has no call"
        raise UsageError(f"{where}: no call of {of.name} can be taken ({why}). {WAY_OUT}")
    chosen = max(groups.values(), key=lambda calls: (sum(call.count for call in calls), len(calls)))
    left_out += [
        f"{call.written()[:80]}: other arguments than most calls"
        for calls in groups.values()
        if calls is not chosen
        for call in calls
    ]
    texts = arguments_text(chosen[0].args, chosen[0].kwargs)
    found = apart(operator_fields, where, name, of.name, texts)
    definition = definition_of(found["fields"], name, where)
    tensors = list(found["tensors"])
    positions = {item: tensors.index(source) for item, source in found["sources"].items()}
    dtypes: dict[str, None] = {}
    workloads: dict[str, NamedWorkload] = {}
    for number, call in enumerate(chosen, start=1):
        shapes = [one.shape for one in tensors_of((*call.args, *call.kwargs.values()))]
        axes = _axes_of({item.name: (item.axes, shapes[positions[item.name]]) for item in definition.inputs})
        if axes is None or (found["fixed"] and shapes != [one.shape for one in tensors_of(chosen[0].args)]):
            left_out.append(f"{call.written()[:80]}: other sizes than the formula holds for")
            continue
        dtypes.update(dict.fromkeys(one.dtype for one in tensors_of((*call.args, *call.kwargs.values()))))
        source = f"BackendBench, {of.name}, {call.count} calls in models"
        workloads.setdefault(
            repr(sorted(axes.items())), NamedWorkload(name=f"call_{number}", axes=axes, source=source, scale="gpu")
        )
    return Reading(
        definition=replace(
            definition,
            about=f"{of.name} of BackendBench",
            dtypes=tuple(dtypes),
            workloads=_scaled(list(workloads.values()), definition),
        ),
        inputs={source: item for item, source in found["sources"].items()},
        outputs=tuple(found["fields"]["outputs"]),
        fixed={},
        left_out=tuple(left_out),
    )


def _one_dtype(tensors: Mapping[str, nouns.Tensor], where: str) -> str:
    """The dtype that all tensors share. Raises UsageError."""
    kinds = {tensor.dtype for tensor in tensors.values() if tensor.shape is not None}
    odd = sorted(kinds - set(DTYPES))
    if odd:
        raise UsageError(f"{where}: it has tensors of {odd[0]}, and formulas take {', '.join(DTYPES)}. {WAY_OUT}")
    if len(kinds) != 1:
        raise UsageError(f"{where}: its tensors are of {' and '.join(sorted(kinds)) or 'no dtype'}, not one. {WAY_OUT}")
    return next(iter(kinds))


def _arguments(task: TaskSet, where: str) -> list[dict[str, Any]]:
    """The reference's arguments: axes of a tensor, or a number's value, which the first workload says."""
    found: list[dict[str, Any]] = []
    for name, tensor in task.definition.inputs.items():
        value = None
        if tensor.shape is None:
            source = next((line.workload.inputs.get(name) for line in task.workloads), None)
            if not isinstance(source, ScalarInput):
                raise UsageError(f"{where}: no workload says the number {name}. Add one with a scalar for it.")
            value = source.value
        found.append({"name": name, "axes": None if tensor.shape is None else list(tensor.shape), "value": value})
    return found


def _attempts(given: nouns.Definition, where: str) -> list[list[dict[str, int]]]:
    """Pairs of sizes: all of them small, else the definition's own where it says them and they are few elements."""

    def sizes(first: int, step: int, *, all_small: bool) -> dict[str, int]:
        said = {key: axis for key, axis in given.axes.items() if isinstance(axis, ConstAxis)}
        kept = {key: axis.value for key, axis in said.items() if not all_small or axis.value < 4}
        small = {key: first + step * at for at, key in enumerate(given.axes) if key not in kept}
        exact = replace(
            given,
            axes={
                key: replace(axis, value=(kept | small)[key]) if isinstance(axis, ConstAxis) else axis
                for key, axis in given.axes.items()
            },
        )
        return exact.sizes(
            {key: size for key, size in small.items() if isinstance(given.axes[key], nouns.VarAxis)}, where
        )

    pairs = [[sizes(6, 3, all_small=True), sizes(7, 4, all_small=True)]]
    own = [sizes(6, 3, all_small=False), sizes(7, 4, all_small=False)]
    shapes = [tensor.shape for tensor in given.inputs.values() if tensor.shape is not None]
    count = sum(math.prod(own[1][axis] if axis in own[1] else int(axis) for axis in shape) for shape in shapes)
    if own[0] != pairs[0][0] and count <= MOST:
        pairs.append(own)
    return pairs


def _workloads(
    task: TaskSet, definition: Definition, axes_of: Mapping[str, Sequence[str]], where: str
) -> tuple[tuple[NamedWorkload, ...], list[str]]:
    found: dict[str, NamedWorkload] = {}
    left_out: list[str] = []
    first = task.workloads[0].workload if task.workloads else None
    for number, line in enumerate(task.workloads, start=1):
        one = line.workload
        sizes = task.definition.sizes(one.axes, f"{where}, workload {one.uuid}")
        sizes |= {axis: int(axis) for axes in axes_of.values() for axis in axes if axis not in sizes}
        shapes = {item.name: (item.axes, [sizes[axis] for axis in axes_of[item.name]]) for item in definition.inputs}
        axes = _axes_of(shapes)
        numbers = [_numbers(of) for of in (one, first) if of is not None]
        if numbers[0] != numbers[-1]:
            left_out.append(f"workload {one.uuid}: other numbers than the first one's, which the formula holds")
        elif axes is None:
            left_out.append(f"workload {one.uuid}: sizes that the formula does not join")
        elif 0 in axes.values():
            left_out.append(f"workload {one.uuid}: no elements, so no time")
        else:
            source = f"{task.form}, {task.definition.name}, workload {one.uuid}"
            name = f"workload_{number}"
            found.setdefault(
                repr(sorted(axes.items())), NamedWorkload(name=name, axes=axes, source=source, scale="gpu")
            )
    return _scaled(list(found.values()), definition), left_out


def _numbers(workload: nouns.Workload) -> dict[str, Any]:
    return {key: one.value for key, one in workload.inputs.items() if isinstance(one, ScalarInput)}


def _axes_of(shapes: Mapping[str, tuple[Sequence[str], Sequence[int]]]) -> dict[str, int] | None:
    """Sizes by axis; None where an axis would have two."""
    found: dict[str, int] = {}
    for axes, sizes in shapes.values():
        if len(axes) != len(sizes) or any(
            found.setdefault(axis, size) != size for axis, size in zip(axes, sizes, strict=True)
        ):
            return None
    return found


def _scaled(workloads: Sequence[NamedWorkload], definition: Definition) -> tuple[NamedWorkload, ...]:
    """Workloads with the scale that fits them; the first made smaller beside them where none is for a CPU."""
    shapes = [item.axes for item in definition.inputs]
    tried = [with_laptop(one, shapes) for one in workloads]
    found = [made[0] for made in tried]
    if found and not any(one.scale == "laptop" for one in found):
        found.append(tried[0][1])
    return tuple(found)


def _renamed(
    fields: Mapping[str, Any], sources: Mapping[str, str], shapes: Mapping[str, Sequence[str]], outputs: Sequence[str]
) -> dict[str, Any]:
    """The fields with the task's own names for axes and outputs, where formulas take them."""
    taken = {*TAKEN, *FUNCTIONS, *CONSTANTS, *fields["inputs"], *re.findall(r"[A-Za-z_]\w*", fields["formula"])}
    names: dict[str, str] = {}
    pairs = [
        pair
        for item, shape in fields["inputs"].items()
        for pair in zip(shape.split(), shapes[sources[item]], strict=True)
    ]
    for ours, theirs in (*pairs, *zip(fields["outputs"], outputs, strict=False)):
        free = theirs not in taken or (theirs in AXES_TOO and ours not in fields["outputs"])
        fits = re.fullmatch(r"[A-Za-z]\w*", theirs) and free and theirs not in names.values()
        if fits and ours not in names and not re.fullmatch(r"d\d+", theirs):
            names[ours] = theirs

    def said(text: str) -> str:
        return re.sub(r"\w+", lambda match: names.get(match[0], match[0]), text)

    return {
        "formula": said(fields["formula"]),
        "inputs": {item: said(shape) for item, shape in fields["inputs"].items()},
        "outputs": {said(item): said(shape) for item, shape in fields["outputs"].items()},
    }


def _unfit(call: Call) -> str:
    """Why a call is nothing for a formula; "" where it may be."""
    tensors = list(tensors_of((*call.args, *call.kwargs.values())))
    if not tensors:
        return "no tensor"
    if len({one.dtype for one in tensors}) > 1 or tensors[0].dtype not in DTYPES:
        return f"tensors of {' and '.join(sorted({one.dtype for one in tensors}))}"
    if any(one.stride is not None for one in tensors):
        return "strides of its own"
    return "no elements" if any(0 in one.shape for one in tensors) else ""


def _structure(call: Call) -> str:
    """All of a call but the sizes and the dtype of its tensors: which dimensions have one element stays."""

    def bare(value: Any) -> Any:
        if isinstance(value, TensorArgument):
            return tuple("1" if size == 1 else "n" for size in value.shape)
        return type(value)(map(bare, value)) if isinstance(value, list | tuple) else value

    return repr((bare(call.args), sorted((key, bare(one)) for key, one in call.kwargs.items())))
