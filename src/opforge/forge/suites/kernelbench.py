"""KernelBench task files in and out: a class Model, get_inputs() and get_init_inputs().

The task is traced on small sizes, which its own constants are set to, so that nothing large is allocated; its own
sizes, found without memory, become the workload "task". The file is the user's own and is run, in a process of its own.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from opforge.core.language.errors import UsageError
from opforge.forge.program.definition import Definition, NamedWorkload, definition_of
from opforge.forge.program.families import WAY_OUT, layout_of
from opforge.forge.read.apart import apart
from opforge.forge.read.traced import fields_from
from opforge.forge.suites.own_module import asked_elsewhere, module_file
from opforge.forge.write.torch_files import reference_text

SMALLEST, LARGEST = 33, 24
"""Whole numbers from the first on are sizes that are made small, to numbers up to the second that differ where they
did."""
LAPTOP = 1 << 20
"""Elements of the largest tensor of the workload that a CPU computes in a moment."""


def read_task(path: Path, name: str) -> Definition:
    """The Definition of a task file, for an operator called `name`. Raises UsageError for what has no formula."""
    return read_module(path, name)[0]


def read_module(path: Path, name: str) -> tuple[Definition, str, str]:
    """The same, with the file of the task's own module as the operator's baseline, or "" and why there is none."""
    found = apart(task_fields, str(path), name)
    definition, reason = _definition(found, path, name), found["reason"]
    if reason:
        return definition, "", f"the task's own module as baseline: {reason}"
    inputs = {item.name: found["sources"][item.name] for item in definition.inputs}
    try:
        return definition, module_file(path.read_text(encoding="utf-8"), inputs, found["forward"], str(path)), ""
    except UsageError as error:
        return definition, "", f"the task's own module as baseline: {error}"


def _definition(found: Mapping[str, Any], path: Path, name: str) -> Definition:
    definition = definition_of(found["fields"], name, str(path))
    source = f"KernelBench, {path.parent.name}/{path.name}"
    shapes = [item.axes for item in definition.inputs]
    workloads = with_laptop(NamedWorkload(name="task", axes=found["axes"], source=source, scale="gpu"), shapes)
    return replace(definition, about=definition.about or found["about"], workloads=workloads)


def task_fields(where: str, name: str) -> dict[str, Any]:
    """What a task file says, for forge.read.apart: "fields" of a definition, "axes" with the task's own sizes, "about";
    "sources" (traced.fields_from), the arguments of "forward", and the "reason" why the module is no baseline.

    Traced on two sets of small sizes: a number that differs between them was a size, and is wrong at any other.
    """
    path = Path(where)
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, UnicodeDecodeError, SyntaxError) as error:
        raise UsageError(f"{path} is no task that can be read: {error}. A task is a Python file with Model.") from error
    missing = [one for one in ("Model", "get_inputs") if not _defines(tree, one)]
    if missing:
        raise UsageError(f"{path} has no {missing[0]}. A task has class Model, get_inputs() and get_init_inputs().")
    import torch

    torch.manual_seed(0)
    fields, sources = fields_from(*_made(_shrunk(tree, LARGEST), path), name, where)
    small, example = _made(_shrunk(tree, LARGEST + 8), path)
    again, _ = fields_from(small, example, name, where)
    if again["formula"] != fields["formula"]:
        raise UsageError(
            f"{path}: a number in its formula changes with its sizes, so it holds for one size alone. {WAY_OUT}"
        )
    with torch.device("meta"):
        large, whole = _made(tree, path)
        forward = list(inspect.signature(large.forward).parameters)[: len(whole)]
        tensors = dict(zip(forward, whole, strict=False))
    tensors |= dict(large.named_parameters()) | dict(large.named_buffers())
    axes: dict[str, int] = {}
    for item, shape in fields["inputs"].items():
        for axis, size in zip(shape.split(), tensors[sources[item]].shape, strict=True):
            if axes.setdefault(axis, int(size)) != size:
                raise UsageError(
                    f"{path}: {item} has sizes that meet in small and not at the task's own. Trace it by hand."
                )
    about = " ".join((ast.get_docstring(next(_classes(tree))) or "").split("Args:")[0].split())
    reason = ""
    try:
        asked_elsewhere(large, small, example)
    except UsageError as error:
        reason = str(error)
    return {"fields": fields, "axes": axes, "about": about, "sources": sources, "forward": forward, "reason": reason}


def with_laptop(found: NamedWorkload, shapes: Sequence[tuple[str, ...]]) -> tuple[NamedWorkload, ...]:
    """A workload, and beside it a smaller one for a CPU where it needs one."""
    small = smaller(found.axes, shapes)
    if small == dict(found.axes):
        return (replace(found, scale="laptop"),)
    return found, NamedWorkload(name="laptop", axes=small, source=f"{found.source}, made smaller", scale="laptop")


def smaller(axes: Mapping[str, Any], shapes: Sequence[tuple[str, ...]]) -> dict[str, Any]:
    """Sizes with the largest of them halved until each tensor fits a CPU's moment."""
    small = dict(axes)
    while max(math.prod(small[axis] for axis in shape) for shape in shapes) > LAPTOP:
        largest = max(small, key=lambda axis: small[axis])
        small[largest] = max(1, small[largest] // 2)
    return small


def write_task(definition: Definition) -> str:
    """A task file of a definition: what its reference computes, on its first workload's sizes. Raises UsageError where
    no family generates it.
    """
    program = definition.program()
    layout = layout_of(program)
    sizes = definition.workloads[0].axes if definition.workloads else {}
    names = [name for name, _ in program.reads]
    # sizes are named, so that whoever reads the task can make it small
    used = dict.fromkeys(axis for _, axes in program.reads for axis in axes)
    named = {axis.lstrip("*"): sizes.get(axis.lstrip("*"), (512,) if axis.startswith("*") else 512) for axis in used}
    shapes = [f"torch.rand({', '.join(axes)})" for _, axes in program.reads]
    constants = "".join(f"{axis} = {size!r}\n" for axis, size in named.items())
    parameters = "".join(f"{key} = {value!r}\n" for key, value in program.parameters)
    given = ", ".join([*names, *(key for key, _ in program.parameters)])
    about = definition.about or f"{definition.name}, written by opforge"
    inputs = "".join(f"        {shape},\n" for shape in shapes)
    return (
        f"import torch\nimport torch.nn as nn\n\n{constants}{parameters}\n\n{reference_text(program, layout)}\n\n"
        f'class Model(nn.Module):\n    """{_plain(about)}"""\n\n    def forward(self, {", ".join(names)}):\n'
        f"        return reference({given})\n\n\ndef get_inputs():\n    return [\n{inputs}    ]\n\n\n"
        "def get_init_inputs():\n    return []\n"
    )


def name_of(path: Path) -> str:
    """An operator's name for a task file: `19_ReLU.py` is relu_19.

    >>> name_of(Path("19_ReLU.py"))
    'relu_19'
    """
    match = re.fullmatch(r"(\d+)_(.*)", path.stem)
    plain = re.sub(r"\W+", "_", match[2] if match else path.stem).strip("_").lower()
    return f"{plain}_{match[1]}" if match else f"task_{plain}"


def _plain(text: str) -> str:
    return " ".join(text.replace("\\", " ").replace('"', "'").split())


def _classes(tree: ast.Module) -> Any:
    return (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model")


def _defines(tree: ast.Module, name: str) -> bool:
    return any(isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name for node in tree.body)


def _shrunk(tree: ast.Module, largest: int) -> ast.Module:
    """The task with large whole numbers of its own level made small, those that differ differently."""
    copy = ast.parse(ast.unparse(tree))
    numbers = [
        node
        for statement in copy.body
        if isinstance(statement, ast.Assign)
        for node in ast.walk(statement.value)
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value >= SMALLEST
    ]
    known: dict[int, int] = {}
    for node in numbers:
        assert isinstance(node.value, int)
        node.value = known.setdefault(node.value, max(4, largest - 2 * len(known)))
    return ast.fix_missing_locations(copy)


def _made(tree: ast.Module, path: Path) -> tuple[Any, tuple[Any, ...]]:
    """Model, made with get_init_inputs() (arguments, or a list and a mapping of them), and what get_inputs() gives."""
    space: dict[str, Any] = {"__name__": f"opforge_task_{path.stem}"}
    try:
        exec(compile(tree, str(path), "exec"), space)
        given = space.get("get_init_inputs", list)()
        with_names = len(given) == 2 and isinstance(given[0], list) and isinstance(given[1], dict)
        made = space["Model"](*given[0], **given[1]) if with_names else space["Model"](*given)
        return made, tuple(space["get_inputs"]())
    except Exception as error:
        # whatever the user's own code raises: it is told, not swallowed
        raise UsageError(
            f"{path}: the task cannot be made on small sizes: {type(error).__name__}: {str(error)[:200]}. {WAY_OUT}"
        ) from error
