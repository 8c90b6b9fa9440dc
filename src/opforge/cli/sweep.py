"""`opforge sweep OP --axis cols=128:65536:log`: time against size, with its knee and its cliffs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opforge.cli.shared import (
    Backends,
    Configs,
    Device,
    Implementations,
    InProcessOption,
    Json,
    OneOperator,
    Shapes,
    backend_names,
    checked,
    device_to_time,
    make_host,
    own_configs,
    own_shapes,
    print_json,
    selected,
    settings,
)
from opforge.core.language import units
from opforge.core.language.errors import UsageError

if TYPE_CHECKING:
    from opforge.core.definition.operator import Operator, Workload
    from opforge.core.evidence.inspection import Inspection
    from opforge.core.evidence.record import Record
    from opforge.registry import Registry
    from opforge.timing.curve import CurvePoint
    from opforge.workbench.sweep_points import SweepLine


def sweep(
    context: typer.Context,
    operator: OneOperator,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=FIRST:LAST:log (powers of two; log12: twelve values), NAME=FIRST:LAST:STEP or NAME=A,B,C; "
            "lead=8,2x3 for an axis that stands for several, BLOCK=256,512 for a tunable. Given several times: every "
            "pair of values."
        ),
    ] = None,
    zipped: Annotated[
        bool, typer.Option("--zip", help="Several axes: their first values together, then their second, …")
    ] = False,
    shape: Shapes = None,
    config: Configs = None,
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
    csv: Annotated[
        Path | None,
        typer.Option(help="Write a line per point here: time, GFLOP/s, GB/s, intensity, registers, occupancy."),
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            help="Registers and occupancy as compiled for this target (sm_90a, …). Default: this device's, on a GPU."
        ),
    ] = "",
    in_process: InProcessOption = False,
    json: Json = False,
) -> None:
    """Time implementations over a range of sizes: time, % of peak, ratio to the fastest, with the knee and the
    cliffs named. Over several axes, shapes or tunables: a table of all points, and the best config of each shape.

    Every size is verified before it is timed, and recorded like a bench. Exit code 1 if a verdict is a failure.
    """
    from opforge.cli.progress import Watcher
    from opforge.cli.shared import exit_code
    from opforge.core.definition.own_shapes import ensure_taken
    from opforge.report import confessions
    from opforge.report.sweep_chart import sweep_csv
    from opforge.timing import Plan
    from opforge.timing.curve import parse_axis, words
    from opforge.workbench import BenchOptions, bench, ensure_chosen, workloads_for
    from opforge.workbench.memory import ensure_fits
    from opforge.workbench.sweep import curves_of, sized, with_workloads
    from opforge.workbench.sweep_points import parse_swept, spanned

    registry = settings(context).registry()
    (name,) = selected(registry, [operator], False)
    definition = registry.operator(name)
    where = device_to_time(device)
    (kind,) = checked("dtype", [dtype or definition.dtypes[0]], definition.dtypes)
    known = {workload_named.name: workload_named for workload_named in definition.workloads}
    (base_name,) = (
        checked("workload", [workload], known)
        if workload
        else (
            next((workload_named.name for workload_named in workloads_for(definition, BenchOptions(device=where))), ""),
        )
    )
    items = [item for item in registry.implementations(name) if not implementation or item.name in implementation]
    axes = [parse_swept(definition, items, text) for text in axis or ()]
    if not axes and not shape:
        raise UsageError("Nothing to sweep. Say --axis NAME=FIRST:LAST:log, several of them, or --shape AXIS=SIZE,….")
    single = axis[0] if axis and len(axis) == 1 and not (shape or config or zipped or axes[0].tunable) else ""
    curve = parse_axis(single) if single and axes[0].name in _whole(known.get(base_name)) else None
    configs = own_configs(config)
    if curve is not None:
        sizes = sized(definition, known.get(base_name), curve)
        points = tuple(sizes.values())
    else:
        sizes = {}
        base = known.get(base_name)
        given = [
            workload for name in own_shapes(registry, [name], shape, (kind,)) for workload in _named(definition, name)
        ]
        spans, tuned = spanned(definition, base, axes, zipped=zipped)
        if tuned and configs:
            raise UsageError("--config and a tunable as --axis both say which configs. Give one of them.")
        points = (*given, *spans) or ((base,) if base is not None else ())
        configs = tuned or configs
        for workload_named in points:
            ensure_taken(definition, workload_named, (kind,))
            ensure_fits(definition, workload_named, (kind,))
    around = with_workloads(registry, definition, points)
    options = BenchOptions(
        device=where,
        dtypes=(kind,),
        backends=backend_names(backend),
        implementations=tuple(implementation or ()),
        configs=configs,
        workloads=tuple(workload_named.name for workload_named in points),
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
    lines = _lines(around, records, where, target) if csv is not None or curve is None or target else []
    if csv is not None:
        csv.parent.mkdir(parents=True, exist_ok=True)
        csv.write_text(sweep_csv([vars(line) for line in lines]), encoding="utf-8")
        typer.echo(f"wrote {csv}", err=True)
    untimed = confessions([record for record in records if record.timing is None])
    if curve is None:
        _show_points(lines, untimed, json=json, dtype=kind)
        across = next((item.name for item in axes if item.name in definition.free_axes), "")
        if plot is not None and lines:
            _draw(plot, f"{name} {kind} on {records[0].device}", definition, across, lines, points)
        raise typer.Exit(exit_code(records))
    curves = curves_of(records, {workload_named.name: value for value, workload_named in sizes.items()})
    sentences = {label: words(curve.name, points) for label, points in curves.items()}
    if json:
        print_json(
            {
                "axis": curve.name,
                "dtype": kind,
                "curves": {label: [vars(point) for point in points] for label, points in curves.items()},
                "words": sentences,
                "untimed": untimed,
            }
        )
    else:
        _print(curve.name, curves, sentences, untimed)
    if plot is not None and curves:
        from opforge.report.sweep_chart import sweep_picture

        times = {label: [(float(point.value), point.seconds) for point in points] for label, points in curves.items()}
        shares = {
            label: [(float(point.value), point.of_roof) for point in points if point.of_roof is not None]
            for label, points in curves.items()
        }
        plot.parent.mkdir(parents=True, exist_ok=True)
        plot.write_text(
            sweep_picture(f"{name} {kind} on {records[0].device}", curve.name, times, shares), encoding="utf-8"
        )
        typer.echo(f"wrote {plot}", err=True)
    raise typer.Exit(exit_code(records))


def _print(
    axis: str, curves: dict[str, list[CurvePoint]], said: dict[str, tuple[str, ...]], untimed: list[str]
) -> None:
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
    _tell_untimed(untimed, nothing=not curves)


def _tell_untimed(untimed: list[str], *, nothing: bool) -> None:
    """Which points have no time, and why: a table that leaves them out looks whole."""
    if untimed:
        typer.echo("not timed")
    for sentence in untimed:
        typer.echo(f"  {sentence}")
    if nothing:
        typer.echo("nothing was timed; see: opforge verify OPERATOR")


def _whole(base: Workload | None) -> tuple[str, ...]:
    """The axes of one size each."""
    return () if base is None else tuple(name for name, size in base.axes.items() if isinstance(size, int))


def _named(operator: Operator, name: str) -> tuple[Workload, ...]:
    from opforge.core.definition.own_shapes import workload_named

    found = workload_named(operator, name)
    return (found,) if found is not None else ()


def _lines(registry: Registry, records: list[Record], where: str, target: str) -> list[SweepLine]:
    """A line per timed record, with what compilers say of its kernel where there is a target to compile for."""
    from opforge.inspect import inspect_implementation
    from opforge.machine import detect
    from opforge.workbench.sweep_points import lines_of

    for_target = target or ("" if where == "cpu" else detect(where).target)

    def inspect(record: Record) -> Inspection:
        return inspect_implementation(
            registry,
            record.operator,
            record.implementation,
            target=for_target,
            dtype=record.dtype,
            axes=record.axes,
            config=record.config if record.config.values else None,
            scalars=record.scalars,
        )

    return lines_of(records, inspect if for_target else None)


def _show_points(lines: list[SweepLine], untimed: list[str], *, json: bool, dtype: str) -> None:
    from opforge.workbench.sweep_points import best_of

    best = best_of(lines)
    if json:
        first = {shape: [f"{line.implementation} {line.config}" for line in ties] for shape, ties in best.items()}
        points = [vars(line) for line in lines]
        print_json({"dtype": dtype, "points": points, "best": first, "untimed": untimed})
        return
    for shape in best:
        typer.echo(shape)
        for line in sorted((line for line in lines if line.shape == shape), key=lambda line: line.seconds):
            roof = f"{units.percent(line.of_roof)} of peak" if line.of_roof is not None else ""
            use = f"  {line.registers} registers" if line.registers is not None else ""
            use += f"  {units.percent(line.occupancy)} occupancy" if line.occupancy is not None else ""
            typer.echo(
                f"  {line.implementation:<24} {line.config:<28} {units.seconds(line.seconds):>9}  "
                f"{line.gflops:9.1f} GFLOP/s {line.gbytes_per_s:9.1f} GB/s  {roof:>14}{use}"
            )
    _tell_untimed(untimed, nothing=not lines)
    if not lines:
        return
    typer.echo("best of each shape")
    for shape, ties in best.items():
        others = f"  (not to be told apart from {len(ties) - 1} more)" if len(ties) > 1 else ""
        typer.echo(f"  {shape}: {ties[0].implementation} {ties[0].config}{others}")


def _draw(
    plot: Path, title: str, operator: Operator, across: str, lines: list[SweepLine], points: tuple[Workload, ...]
) -> None:
    from opforge.report.sweep_chart import sweep_picture
    from opforge.workbench.sweep_points import lines_for_picture

    named = across or operator.free_axes[-1]
    along = lines_for_picture(lines, named, {workload.name: workload for workload in points})
    times = {label: [(size, line.seconds) for size, line in found] for label, found in along.items()}
    shares = {
        label: [(size, line.of_roof) for size, line in found if line.of_roof is not None]
        for label, found in along.items()
    }
    plot.parent.mkdir(parents=True, exist_ok=True)
    plot.write_text(sweep_picture(title, named, times, shares), encoding="utf-8")
    typer.echo(f"wrote {plot}", err=True)
