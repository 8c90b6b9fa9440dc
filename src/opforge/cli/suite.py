"""`opforge suite run FOLDER`: tasks of KernelBench, flashinfer-trace, SOL-ExecBench and BackendBench, generated,
verified and timed; `suite export` writes them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from opforge.cli.shared import Device, InProcessOption, Json, device_to_time, make_host, print_json
from opforge.core.errors import UsageError, unknown


def suite(
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
    in_process: InProcessOption = False,
    json: Json = False,
) -> None:
    """Run task files (class Model, get_inputs, get_init_inputs): what is correct, how fast, how near the roof.

    A task's sizes become a workload; on a CPU a smaller one is timed. Compared is with the fastest of PyTorch's
    versions that were timed; torch.compile is one of them with --backend compile. `opforge suite export
    definition.yaml` prints a definition as a task file. Task files are run: they are your own.
    """
    if action == "export":
        _export(place, json=json)
        return
    if action != "run":
        raise unknown("action of a suite", action, ("run", "export"))
    from opforge.cli.progress import telling
    from opforge.forge.suite import lines, run_task, summary
    from opforge.forge.tasks import tasks_at
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


def _export(place: Path, *, json: bool) -> None:
    from opforge.forge import read_definition, read_document
    from opforge.forge.kernelbench import write_task

    if not place.is_file():
        raise UsageError(
            f"There is no file {place}. Name a definition: opforge suite export my_ops/gated/definition.md"
        )
    name = place.parent.name if place.name == "definition.md" else place.stem
    text = write_task(read_document(place, name) if place.suffix == ".md" else read_definition(place, name))
    if json:
        print_json({"task": text})
    else:
        typer.echo(text, nl=False)
