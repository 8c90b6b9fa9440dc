"""Operators as tasks of flashinfer-trace and SOL-ExecBench: definition and workloads from a definition, solutions from
the kernels of its folder, traces from records.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from opforge.core.evidence.record import Record
from opforge.core.evidence.verdict import Broken, Crash, Mismatch, Pass, Timeout
from opforge.core.language.errors import UsageError
from opforge.forge.program.definition import Definition
from opforge.forge.program.families import layout_of
from opforge.forge.suites.formats import nouns
from opforge.forge.suites.formats.documents import text_of
from opforge.forge.suites.formats.nouns import FLASHINFER, NUMERICAL, PASSED, SOL, TaskSet
from opforge.forge.write.document import default_workloads
from opforge.forge.write.torch_files import reference_text

VERSION = "version."
"""What facts of a record's environment begin with that are versions of libraries."""
STATUSES = {Mismatch: NUMERICAL, Broken: "RUNTIME_ERROR", Crash: "RUNTIME_ERROR", Timeout: "TIMEOUT"}


def task_of(definition: Definition, form: str, dtype: str = "") -> TaskSet:
    """A definition and its workloads as a task. Axes are `var`, any number of them (`*lead`) become one.

    dtype   of all tensors; "": the definition's first one
    Raises UsageError where no family generates it, or it has no such dtype.
    """
    program = definition.program()
    layout = layout_of(program)
    kind = dtype or definition.dtypes[0]
    if kind not in definition.dtypes:
        raise UsageError(f"{definition.name} has no {kind}. It has: {', '.join(definition.dtypes)}.")
    names = [name for name, _ in program.reads]
    parameters = dict(program.parameters)
    axes = dict.fromkeys(axis.lstrip("*") for _, of in program.reads for axis in of)
    given = ", ".join([*(_wide(name, kind) for name in names), *parameters])
    results = [f"found[{at}]" for at in range(len(program.writes))] if len(program.writes) > 1 else ["found"]
    narrow = "" if kind == "float32" else f".to({names[0]}.dtype)"
    reference = (
        f"import torch\n\n\n{reference_text(program, layout)}\n\n"
        f"@torch.no_grad()\ndef run({', '.join([*names, *parameters])}):\n    found = reference({given})\n"
        f"    return {', '.join(result + narrow for result in results)}\n"
    )
    task = nouns.Definition(
        name=definition.name,
        op_type=layout.family,
        axes={axis: nouns.VarAxis(type="var") for axis in axes},
        inputs={name: _tensor(of, kind) for name, of in program.reads}
        | {name: nouns.Tensor(shape=None, dtype="float32") for name in parameters},
        outputs={write.name: _tensor(write.axes, kind) for write in program.writes},
        reference=reference,
        description=" ".join(definition.about.split()) or None,
    )
    workloads = definition.workloads or default_workloads(definition, program)
    return TaskSet(
        form=form,
        definition=task,
        workloads=tuple(
            nouns.Trace(
                keys=("definition", "workload", "solution", "evaluation"),
                definition=definition.name,
                workload=_workload(definition.name, one.name, one.axes, names, parameters),
            )
            for one in workloads
        ),
    )


def with_solutions(task: TaskSet, folder: Path, definition: Definition) -> tuple[TaskSet, tuple[str, ...]]:
    """The task with the kernels of an operator's folder that run by themselves, and a sentence for each other one."""
    program = definition.program()
    tensors = [name for name, _ in program.reads]
    results = [write.name for write in program.writes]
    numbers = [name for name, _ in program.parameters]
    found: list[nouns.Solution] = []
    reasons: list[str] = []
    for path in sorted(folder.glob("*_*.*")):
        backend = path.name.split("_")[0]
        if backend not in ("torch", "triton", "cpp", "cuda", "tilelang"):
            continue
        if backend not in ("torch", "triton"):
            reasons.append(f"{path.name} is built with opforge's headers, which a solution's sources have not.")
            continue
        text = text_of(path).rstrip() + "\n"
        entry, in_place = "run", False
        if backend == "triton":
            entry, in_place = "solution", True
            said = [*tensors, *results, *(f"{name}={name}" for name in numbers), '**globals().get("DEFAULT", {})']
            text += f"\n\ndef solution({', '.join([*tensors, *numbers, *results])}):\n    launch({', '.join(said)})\n"
        language = "triton" if backend == "triton" else "python" if task.form == FLASHINFER else "pytorch"
        spec = nouns.BuildSpec(
            language=language if task.form == FLASHINFER else None,
            languages=(language,) if task.form == SOL else None,
            target_hardware=("cuda",) if task.form == FLASHINFER else ("LOCAL",),
            entry_point=f"{path.name}::{entry}",
            dependencies=tuple(dict.fromkeys(("torch", *(one for one in ("triton", "opforge") if f"{one}." in text)))),
            destination_passing_style=in_place,
        )
        found.append(
            nouns.Solution(
                name=path.stem,
                definition=task.definition.name,
                author="opforge",
                spec=spec,
                sources=(nouns.SourceFile(path=path.name, content=text),),
            )
        )
    return TaskSet(
        form=task.form,
        definition=task.definition,
        workloads=task.workloads,
        solutions=tuple(found),
        traces=task.traces,
        where=task.where,
    ), tuple(reasons)


def traces_of(task: TaskSet, records: Iterable[Record]) -> tuple[nouns.Trace, ...]:
    """What records say of a task's solutions on its workloads, in its dtype.

    PASSED where there is a time; PyTorch's median of the same run and workload is the reference's. A verdict that says
    nothing of correctness (not run, no time) gives no trace: these benchmarks have no word for it.
    """
    named = {one.name for one in task.solutions}
    dtype = next(iter(task.definition.outputs.values())).dtype
    mine = [one for one in records if one.operator == task.definition.name and one.dtype == dtype]
    lines = {_sizes(line.workload.axes): line.workload for line in task.workloads}
    references = {
        (one.run, one.workload): one.timing.median_s
        for one in mine
        if one.implementation == "torch_eager" and one.timing is not None
    }
    found = []
    for record in mine:
        workload = lines.get(_sizes({name: _flat(size) for name, size in record.axes.items()}))
        if workload is None or record.implementation not in named:
            continue
        evaluation = _evaluation(record, references.get((record.run, record.workload)))
        if evaluation is not None:
            found.append(
                nouns.Trace(
                    definition=task.definition.name,
                    solution=record.implementation,
                    workload=workload,
                    evaluation=evaluation,
                )
            )
    return tuple(found)


def _evaluation(record: Record, reference_s: float | None) -> nouns.Evaluation | None:
    verdict = record.verdict
    correctness = performance = None
    if isinstance(verdict, Pass):
        if record.timing is None:
            return None
        status = PASSED
        # as these benchmarks draw inputs; errors on values near the largest are large
        plain = [checked for checked in verdict.checked if checked.case.distribution == "normal"]
        metrics = [one for checked in plain for one in checked.metrics]
        correctness = _correctness([one.max_abs for one in metrics], [one.max_rel for one in metrics])
        median = record.timing.median_s
        performance = nouns.Performance(
            latency_ms=median * 1e3,
            reference_latency_ms=None if reference_s is None else reference_s * 1e3,
            speedup_factor=None if reference_s is None else reference_s / median,
        )
    elif type(verdict) in STATUSES:
        status = STATUSES[type(verdict)]
        if isinstance(verdict, Mismatch):
            error = abs(verdict.actual - verdict.expected)
            relative = error / abs(verdict.expected) if verdict.expected else math.inf
            correctness = _correctness([error], [relative])
    else:
        return None
    return nouns.Evaluation(
        status=status,
        environment=nouns.RunEnvironment(
            hardware=record.device,
            libs={
                name.removeprefix(VERSION): value
                for name, value in record.environment.facts.items()
                if name.startswith(VERSION)
            },
        ),
        timestamp=record.created_at,
        correctness=correctness,
        performance=performance,
    )


def _correctness(absolute: Sequence[float], relative: Sequence[float]) -> nouns.Correctness:
    return nouns.Correctness(max_absolute_error=_largest(absolute), max_relative_error=_largest(relative))


def _largest(errors: Sequence[float]) -> float | str:
    """The largest; what JSON has no number for is text."""
    if any(math.isnan(one) for one in errors):
        return "NaN"
    found = max(errors, default=0.0)
    return "Infinity" if math.isinf(found) else found


def _workload(
    operator: str, name: str, axes: Mapping[str, Any], tensors: Sequence[str], parameters: Mapping[str, float]
) -> nouns.Workload:
    inputs: dict[str, nouns.InputSource] = {one: nouns.RandomInput(type="random") for one in tensors}
    inputs |= {key: nouns.ScalarInput(type="scalar", value=value) for key, value in parameters.items()}
    # the same each time it is written
    named = str(uuid.uuid5(uuid.NAMESPACE_URL, f"opforge/{operator}/{name}/{sorted(axes.items())}"))
    return nouns.Workload(uuid=named, axes={key: _flat(size) for key, size in axes.items()}, inputs=inputs)


def _flat(size: int | tuple[int, ...]) -> int:
    return math.prod(size) if isinstance(size, tuple) else size


def _sizes(axes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(axes.items()))


def _tensor(axes: Sequence[str], dtype: str) -> nouns.Tensor:
    return nouns.Tensor(shape=tuple(axis.lstrip("*") for axis in axes), dtype=dtype)


def _wide(name: str, dtype: str) -> str:
    return name if dtype == "float32" else f"{name}.to(torch.float32)"
