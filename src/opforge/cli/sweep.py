"""`opforge sweep OP --axis cols=128:65536:log`: time against size, with its knee and its cliffs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opforge.cli.shared import Backends, Device, Implementations, InProcess, Json, backend_names, checked, device_to_time, make_host, print_json, selected, settings
from opforge.core import units
from opforge.core.errors import UsageError

if TYPE_CHECKING:
    from opforge.core.operator import Operator, Workload
    from opforge.core.record import Record
    from opforge.timing.curve import Axis, Point


def sweep(
    context: typer.Context,
    operator: Annotated[str, typer.Argument(metavar="OPERATOR", help="The operator by name.")],
    axis: Annotated[str, typer.Option(help="NAME=FIRST:LAST:log (powers of two; log12: twelve values), NAME=FIRST:LAST:STEP or NAME=A,B,C.")],
    device: Device = "",
    dtype: Annotated[str, typer.Option(help="One dtype. Default: the operator's first.")] = "",
    backend: Backends = None,
    implementation: Implementations = None,
    workload: Annotated[str, typer.Option(help="The workload whose other axes are kept. Default: the first that is sized for this device.")] = "",
    budget: Annotated[float, typer.Option(min=0.05, help="Seconds of measuring for each implementation × size.")] = 0.3,
    plot: Annotated[Path | None, typer.Option(help="Write the picture here (SVG).")] = None,
    in_process: InProcess = False,
    json: Json = False,
) -> None:
    """Time implementations over a range of sizes: time, share of the roof, ratio to the fastest, with the knee and the cliffs named.

    Every size is verified before it is timed, and recorded like a bench. Exit code 1 if a verdict is a failure.
    """
    from opforge.cli.shared import exit_code
    from opforge.registry import Registry
    from opforge.timing import Plan
    from opforge.timing.curve import parse_axis, words
    from opforge.workbench import Options, bench, ensure_chosen, workloads_for

    registry = settings(context).registry()
    (name,) = selected(registry, [operator], False)
    definition = registry.operator(name)
    where = device_to_time(device)
    swept = parse_axis(axis)
    (kind,) = checked("dtype", [dtype or definition.dtypes[0]], definition.dtypes)
    known = {found.name: found for found in definition.workloads}
    (base_name,) = checked("workload", [workload], known) if workload else (next((found.name for found in workloads_for(definition, Options(device=where))), ""),)
    sizes = sized(definition, known.get(base_name), swept)
    around = Registry(registry.homes, {name: replace(definition, workloads=tuple(sizes.values()))})
    options = Options(
        device=where,
        dtypes=(kind,),
        backends=backend_names(backend),
        implementations=tuple(implementation or ()),
        workloads=tuple(found.name for found in sizes.values()),
        plan=Plan(budget_s=budget, samples=15, cache="warm" if where == "cpu" else "cold"),
    )
    ensure_chosen(around, (name,), options)
    host = make_host(in_process)
    records: list[Record] = []
    try:
        with settings(context).open_store() as store:
            for record in bench(around, [name], options, host):
                store.add([record])
                records.append(record)
                if not json and record.timing is not None:
                    typer.echo(f"timed {record.implementation} {record.workload}", err=True)
    finally:
        host.close()
    curves = curves_of(records, {found.name: value for value, found in sizes.items()})
    said = {label: words(swept.name, points) for label, points in curves.items()}
    if json:
        print_json({"axis": swept.name, "dtype": kind, "curves": {label: [vars(point) for point in points] for label, points in curves.items()}, "words": said})
    else:
        _print(swept.name, curves, said)
    if plot is not None and curves:
        from opforge.report.sweep import sweep_picture

        times = {label: [(float(point.value), point.seconds) for point in points] for label, points in curves.items()}
        shares = {label: [(float(point.value), point.of_roof) for point in points if point.of_roof is not None] for label, points in curves.items()}
        plot.parent.mkdir(parents=True, exist_ok=True)
        plot.write_text(sweep_picture(f"{name} {kind} on {records[0].device}", swept.name, times, shares), encoding="utf-8")
        typer.echo(f"wrote {plot}", err=True)
    raise typer.Exit(exit_code(records))


def sized(operator: Operator, base: Workload | None, axis: Axis) -> dict[int, Workload]:
    """A workload per value of the axis, the other axes as `base` has them. Raises UsageError."""
    if base is None:
        raise UsageError(f"{operator.name} has no workload to take the other axes from. Add one to its op.py.")
    if not isinstance(base.axes.get(axis.name), int):
        free = [name for name, value in base.axes.items() if isinstance(value, int)]
        raise UsageError(f"{operator.name} has no axis {axis.name!r} to sweep. It has: {', '.join(free) or 'none'}.")
    return {
        value: replace(
            base,
            name=f"{base.name}_{axis.name}_{value}",
            axes=operator.completed({**base.axes, axis.name: value}, operator.scalar_values(base.scalars)),
            source=f"sweep of {axis.name}, the rest as {base.name}",
        )
        for value in axis.values
    }


def curves_of(records: list[Record], values: dict[str, int]) -> dict[str, list[Point]]:
    """The timed points of each implementation, by size. Work is bytes where memory limits, else FLOP."""
    from opforge.timing.curve import Point

    found: dict[str, list[Point]] = {}
    for record in records:
        timing = record.timing
        if timing is None or record.workload not in values:
            continue
        low, high = timing.interval_s
        work = record.cost.flops if record.limiter == "compute" and record.cost.flops else record.cost.bytes
        share = record.roof_s / timing.median_s if record.roof_s else None
        found.setdefault(record.implementation, []).append(Point(value=values[record.workload], seconds=timing.median_s, low=low, high=high, work=float(work), of_roof=share))
    return {name: sorted(points, key=lambda point: point.value) for name, points in found.items()}


def _print(axis: str, curves: dict[str, list[Point]], said: dict[str, tuple[str, ...]]) -> None:
    fastest: dict[int, float] = {}
    for points in curves.values():
        for point in points:
            fastest[point.value] = min(point.seconds, fastest.get(point.value, point.seconds))
    for name, points in curves.items():
        typer.echo(name)
        for point in points:
            roof = f"{units.percent(point.of_roof)} of roof" if point.of_roof is not None else ""
            behind = point.seconds / fastest[point.value]
            typer.echo(f"  {axis}={point.value:<8} {units.seconds(point.seconds):>9}  {roof:>14}  {'fastest' if behind == 1 else f'{behind:.2f} x the fastest'}")
        for sentence in said[name]:
            typer.echo(f"  {sentence}")
    if not curves:
        typer.echo("nothing was timed; see: opforge verify OPERATOR")
