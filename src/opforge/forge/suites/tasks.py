"""Tasks of any benchmark that opforge reads: what a file or a folder holds, each with its definition, its solutions and
what was left out of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from opforge.core.language.errors import UsageError, unknown
from opforge.forge.generate import More
from opforge.forge.program.definition import Definition
from opforge.forge.suites.formats.call_lines import (
    OperatorCalls,
    kernel_files,
    kernel_function,
    operator_of,
    read_calls,
)
from opforge.forge.suites.formats.documents import text_of
from opforge.forge.suites.formats.files import holds_tasks, task_sets
from opforge.forge.suites.formats.nouns import BuildSpec, Solution, SourceFile, TaskSet
from opforge.forge.suites.kernelbench import name_of, read_module
from opforge.forge.suites.own_module import OWN
from opforge.forge.suites.solutions import cases_at, own_reference, taken_in
from opforge.forge.suites.traced_tasks import Reading, name_for, read_operator, read_task_set

KERNELS = "generated_kernels"
"""The folder that BackendBench looks for kernels in."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A task that can be generated: its definition, the solutions that fit, and what was left out, with reasons."""

    definition: Definition
    more: More
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task: what people call it, a name for its operator, and how it is read (which takes a trace)."""

    label: str
    name: str
    prepare: Callable[[str], Prepared]


def tasks_at(place: Path) -> list[Task]:
    """The tasks of a folder or a file: KernelBench (.py), flashinfer-trace and SOL-ExecBench (.json, or their folders),
    BackendBench (.txt). Raises UsageError where there is none.
    """
    if place.is_dir() and not holds_tasks(place):
        files = sorted(place.glob("*.py"), key=_number) or sorted(place.glob("*.txt"))
        if not files:
            raise UsageError(
                f"{place} has no tasks. Name a folder of task files (*.py), of a suite (*.txt), with definitions/ or "
                "with definition.json: opforge suite run KernelBench/level1"
            )
        return [task for file in files for task in tasks_at(file)]
    match place.suffix:
        case ".py":
            return [
                Task(
                    label=place.stem,
                    name=name_of(place),
                    prepare=lambda name: _module(place, name),
                )
            ]
        case ".txt" | ".parquet":
            return [_operator(one, place) for one in read_calls(place).operators if one.calls]
        case _ if place.exists():
            return [_set(one) for one in task_sets(place)]
    raise UsageError(f"There is no file or folder {place}. Name one: opforge suite run KernelBench/level1")


def one_task(place: Path) -> Task:
    """The one task of a file; of several the one behind a colon: suite.txt:aten.relu.default. Raises UsageError."""
    wanted, file = "", place
    if not place.exists() and ":" in place.name:
        head, _, wanted = str(place).rpartition(":")
        file = Path(head)
    found = tasks_at(file)
    if not wanted and len(found) == 1:
        return found[0]
    if not wanted:
        raise UsageError(f"{file} holds {len(found)} tasks. Name one: {file}:{found[0].label if found else 'NAME'}")
    for task in found:
        if task.label == wanted:
            return task
    raise unknown(f"task in {file}", wanted, [task.label for task in found])


def _module(place: Path, name: str) -> Prepared:
    definition, own, reason = read_module(place, name)
    files = {f"{OWN}.py": own} if own else {}
    return Prepared(definition=definition, more=More(files=files), left_out=(reason,) if reason else ())


def _prepared(reading: Reading, solutions: tuple[Solution, ...]) -> Prepared:
    files, reasons = taken_in(solutions, reading)
    return Prepared(
        definition=reading.definition,
        more=More(files=files, cases=cases_at(reading) if files else ()),
        left_out=(*reading.left_out, *reasons),
    )


def _set(task: TaskSet) -> Task:
    name = task.definition.name

    def prepare(called: str) -> Prepared:
        reading = read_task_set(task, called)
        found = _prepared(reading, task.solutions)
        own, reasons = own_reference(task.definition.reference, reading)
        more = More(files={**own, **found.more.files}, cases=found.more.cases or (cases_at(reading) if own else ()))
        return Prepared(definition=found.definition, more=more, left_out=(*found.left_out, *reasons))

    return Task(label=name, name=name_for(name), prepare=prepare)


def _operator(of: OperatorCalls, file: Path) -> Task:
    def prepare(name: str) -> Prepared:
        return _prepared(read_operator(of, name, str(file)), _kernels(of.name, file.parent))

    return Task(label=of.name, name=name_for(of.name), prepare=prepare)


def _kernels(operator: str, folder: Path) -> tuple[Solution, ...]:
    """The kernel that BackendBench would take for an operator, as a solution that returns its result."""
    root = folder / KERNELS
    files = kernel_files(root) if root.is_dir() else {}
    path = files.get(operator_of(operator.removeprefix("aten.").replace(".", "__")))
    if path is None:
        return ()
    text = text_of(path)
    spec = BuildSpec(
        language="triton" if "triton.jit" in text else "python",
        target_hardware=("any",),
        entry_point=f"{path.name}::{kernel_function(operator)}",
        destination_passing_style=False,
    )
    source = SourceFile(path=path.name, content=text)
    return (Solution(name=path.stem, definition=operator, author=str(folder), spec=spec, sources=(source,)),)


def _number(path: Path) -> tuple[int, str]:
    head = path.stem.split("_")[0]
    return (int(head) if head.isdigit() else 0, path.stem)
