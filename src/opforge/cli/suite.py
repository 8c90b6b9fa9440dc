"""`opforge suite run FOLDER`: tasks of KernelBench, flashinfer-trace, SOL-ExecBench and BackendBench, generated,
verified and timed; `suite export` writes them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opforge.cli.shared import Device, InProcessOption, Json, checked, device_to_time, make_host, print_json, settings
from opforge.core.language.errors import UsageError, unknown

if TYPE_CHECKING:
    from opforge.forge import Definition


KERNELBENCH, BACKENDBENCH = "kernelbench", "backendbench"


def suite(
    context: typer.Context,
    action: Annotated[str, typer.Argument(help="run or export.")],
    place: Annotated[
        Path, typer.Argument(metavar="PLACE", help="A folder of task files, or one; export: a definition.")
    ],
    home: Annotated[Path | None, typer.Option(help="Keep the generated operators in this folder.")] = None,
    device: Device = "",
    dtype: Annotated[
        str, typer.Option(help="The one dtype that both sides compute. Default: float32, else the task's own.")
    ] = "",
    backend: Annotated[
        list[str] | None,
        typer.Option(help="Backends to take; may be given several times. Default: torch, cpp on a CPU; all on a GPU."),
    ] = None,
    most: Annotated[int, typer.Option(min=0, help="At most so many tasks; 0: all.")] = 0,
    budget: Annotated[float, typer.Option(min=0.05, help="Seconds of measuring for each task.")] = 1.0,
    form: Annotated[
        str,
        typer.Option(
            "--as", metavar="FORM", help="export: kernelbench, flashinfer-trace, sol-execbench or backendbench."
        ),
    ] = KERNELBENCH,
    out: Annotated[
        Path | None, typer.Option(help="export: the folder to write; for kernelbench the file. Default: print.")
    ] = None,
    aten: Annotated[
        str, typer.Option(metavar="OPERATOR", help="export --as backendbench: the operator of ATen that it computes.")
    ] = "",
    in_process: InProcessOption = False,
    json: Json = False,
) -> None:
    """Run tasks of KernelBench, flashinfer-trace, SOL-ExecBench or BackendBench: what is correct, how fast, how near
    the roof.

    A task's sizes become workloads; on a CPU a smaller one is timed. Compared is with the fastest of PyTorch's
    versions that were timed; torch.compile is one of them with --backend compile. The PyTorch of a task is run to be
    traced: tasks are your own.

    `opforge suite export DEFINITION --as flashinfer-trace --out FOLDER` writes a definition with its workloads as
    such a task; from an operator's folder (definition.md) its kernels become solutions, and records traces. Without
    --as it is printed as a KernelBench file.
    """
    if action == "export":
        _export(context, place, form, out, dtype, aten, json=json)
        return
    if action != "run":
        raise unknown("action of a suite", action, ("run", "export"))
    from opforge.cli.progress import telling
    from opforge.forge.suites.suite import lines, run_task, summary
    from opforge.forge.suites.tasks import tasks_at
    from opforge.timing import Plan

    tasks = tasks_at(place)[: most or None]
    where = device_to_time(device)
    kinds = tuple(backend or (("torch", "cpp") if where == "cpu" else ()))
    plan = Plan(budget_s=budget, cache="warm" if where == "cpu" else "cold")
    results = []
    host = make_host(in_process)
    try:
        with tempfile.TemporaryDirectory() as scratch, telling(quiet=json) as say:
            for task in tasks:
                one = run_task(task, home or Path(scratch), host, device=where, dtype=dtype, backends=kinds, plan=plan)
                results.append(one)
                say(f"{task.label}: {one.outcome}")
    finally:
        host.close()
    if json:
        print_json({"tasks": results, "summary": summary(results)})
        return
    for one in results:
        faster = (
            f"{one.speed_up:.2f} ({one.candidate} against {one.baseline})" if one.speed_up is not None else one.reason
        )
        typer.echo(f"{one.task}: {one.outcome}; {faster}")
        for name, words in one.solutions.items():
            typer.echo(f"  solution {name}: {words}")
        for reason in one.left_out:
            typer.echo(f"  left out: {reason}")
    for line in lines(results):
        typer.echo(line)


def _export(
    context: typer.Context, place: Path, form: str, out: Path | None, dtype: str, aten: str, *, json: bool
) -> None:
    from opforge.forge.suites.formats.nouns import FLASHINFER, SOL
    from opforge.forge.suites.kernelbench import write_task

    checked("form of tasks", [form], (KERNELBENCH, FLASHINFER, SOL, BACKENDBENCH))
    if form != KERNELBENCH and out is None:
        raise UsageError(f"{form} is a folder of documents. Say where it goes: --out FOLDER")
    if place.is_file() and place.suffix in (".json", ".md", ".yaml", ".yml"):
        definition = _definition_in(place)
    else:
        raise UsageError(
            f"{place} is no definition. Name one: opforge suite export my_ops/gated/definition.md, a .yaml, or "
            "a task's .json"
        )
    if form == KERNELBENCH:
        text = write_task(definition)
        if out is not None:
            _written({out.name: text}, out.parent, json=json)
        elif json:
            print_json({"task": text})
        else:
            typer.echo(text, nl=False)
        return
    assert out is not None
    folder = place.parent if place.name == "definition.md" else None
    if form == BACKENDBENCH:
        from opforge.forge.suites.export_calls import suite_files

        _written(suite_files(definition, aten, dtype, folder), out, json=json)
        return
    from dataclasses import replace

    from opforge.forge.suites.export_tasks import task_of, traces_of, with_solutions
    from opforge.forge.suites.formats.files import files_of_task

    task = task_of(definition, form, dtype)
    reasons: tuple[str, ...] = ()
    if folder is not None:
        task, reasons = with_solutions(task, folder, definition)
        with settings(context).open_store() as store:
            task = replace(task, traces=traces_of(task, store.query(operator=definition.name, limit=None)))
    _written(files_of_task(task), out, json=json)
    for reason in () if json else reasons:
        typer.echo(f"left out: {reason}")


def _definition_in(place: Path) -> Definition:
    from opforge.forge import read_definition
    from opforge.forge.read.documents import read_document

    if place.suffix == ".json":
        from opforge.forge.suites.tasks import one_task

        task = one_task(place)
        return task.prepare(task.name).definition
    name = place.parent.name if place.name == "definition.md" else place.stem
    return read_document(place, name) if place.suffix == ".md" else read_definition(place, name)


def _written(files: dict[str, str], folder: Path, *, json: bool) -> None:
    """Write files that are not there yet; none where one of them is."""
    taken = [name for name in files if (folder / name).exists()]
    if taken:
        raise UsageError(f"{folder / taken[0]} exists already. Name another folder with --out, or remove it.")
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if not json:
            typer.echo(f"wrote {path}")
    if json:
        print_json([str(folder / name) for name in files])
