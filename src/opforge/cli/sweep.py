"""`opforge sweep OP --axis cols=128:65536:log`: time against size, with its knee and its cliffs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opforge.cli.shared import (
    Backends,
    Device,
    Implementations,
    InProcessOption,
    Json,
    backend_names,
    checked,
    device_to_time,
    make_host,
    print_json,
    selected,
    settings,
)
from opforge.core import units

if TYPE_CHECKING:
    from opforge.core.record import Record
    from opforge.timing.curve import CurvePoint


def sweep(
    context: typer.Context,
    operator: Annotated[str, typer.Argument(metavar="OPERATOR", help="The operator by name.")],
    axis: Annotated[
        str,
        typer.Option(
            help="NAME=FIRST:LAST:log (powers of two; log12: twelve values), NAME=FIRST:LAST:STEP or NAME=A,B,C."
        ),
    ],
    device: Device = "",
    dtype: Annotated[str, typer.Option(help="One dtype. Default: the operator's first.")] = "",
    backend: Backends = None,
    implementation: Implementations = None,
    workload: Annotated[
        str,
        typer.Option(help="The workload whose other axes are kept. Default: the first that is sized for this device."),
    ] = "",
    budget: Annotated[float, typer.Option(min=0.05, help="Seconds of measuring for each implementation × size.")] = 0.3,
    plot: Annotated[Path | None, typer.Option(help="Write the picture here (SVG).")] = None,
    in_process: InProcessOption = False,
    json: Json = False,
) -> None:
    """Time implementations over a range of sizes: time, % of peak, ratio to the fastest, with the knee and the
    cliffs named.

    Every size is verified before it is timed, and recorded like a bench. Exit code 1 if a verdict is a failure.
    """
    from opforge.cli.progress import Watcher
    from opforge.cli.shared import exit_code
    from opforge.timing import Plan
    from opforge.timing.curve import parse_axis, words
    from opforge.workbench import BenchOptions, bench, ensure_chosen, workloads_for
    from opforge.workbench.sweep import curves_of, sized, with_workloads

    registry = settings(context).registry()
    (name,) = selected(registry, [operator], False)
    definition = registry.operator(name)
    where = device_to_time(device)
    swept = parse_axis(axis)
    (kind,) = checked("dtype", [dtype or definition.dtypes[0]], definition.dtypes)
    known = {workload_named.name: workload_named for workload_named in definition.workloads}
    (base_name,) = (
        checked("workload", [workload], known)
        if workload
        else (
            next((workload_named.name for workload_named in workloads_for(definition, BenchOptions(device=where))), ""),
        )
    )
    sizes = sized(definition, known.get(base_name), swept)
    around = with_workloads(registry, definition, sizes.values())
    options = BenchOptions(
        device=where,
        dtypes=(kind,),
        backends=backend_names(backend),
        implementations=tuple(implementation or ()),
        workloads=tuple(workload_named.name for workload_named in sizes.values()),
        plan=Plan(budget_s=budget, samples=15, cache="warm" if where == "cpu" else "cold"),
    )
    ensure_chosen(around, (name,), options)
    host = make_host(in_process)
    records: list[Record] = []
    try:
        with settings(context).open_store() as store, Watcher(quiet=json) as watcher:
            for record in bench(around, [name], options, host, listener=watcher):
                store.add([record])
                records.append(record)
                if not json and record.timing is not None:
                    typer.echo(f"timed {record.implementation} {record.workload}", err=True)
    finally:
        host.close()
    curves = curves_of(records, {workload_named.name: value for value, workload_named in sizes.items()})
    sentences = {label: words(swept.name, points) for label, points in curves.items()}
    if json:
        print_json(
            {
                "axis": swept.name,
                "dtype": kind,
                "curves": {label: [vars(point) for point in points] for label, points in curves.items()},
                "words": sentences,
            }
        )
    else:
        _print(swept.name, curves, sentences)
    if plot is not None and curves:
        from opforge.report.sweep_chart import sweep_picture

        times = {label: [(float(point.value), point.seconds) for point in points] for label, points in curves.items()}
        shares = {
            label: [(float(point.value), point.of_roof) for point in points if point.of_roof is not None]
            for label, points in curves.items()
        }
        plot.parent.mkdir(parents=True, exist_ok=True)
        plot.write_text(
            sweep_picture(f"{name} {kind} on {records[0].device}", swept.name, times, shares), encoding="utf-8"
        )
        typer.echo(f"wrote {plot}", err=True)
    raise typer.Exit(exit_code(records))


def _print(axis: str, curves: dict[str, list[CurvePoint]], said: dict[str, tuple[str, ...]]) -> None:
    from opforge.workbench.sweep import fastest_of

    fastest = fastest_of(curves)
    for name, points in curves.items():
        typer.echo(name)
        for point in points:
            roof = f"{units.percent(point.of_roof)} of peak" if point.of_roof is not None else ""
            behind = point.seconds / fastest[point.value]
            typer.echo(
                f"  {axis}={point.value:<8} {units.seconds(point.seconds):>9}  {roof:>14}  "
                f"{'fastest' if behind == 1 else f'{behind:.2f} x the fastest'}"
            )
        for sentence in said[name]:
            typer.echo(f"  {sentence}")
    if not curves:
        typer.echo("nothing was timed; see: opforge verify OPERATOR")
