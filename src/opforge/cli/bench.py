"""`opforge bench OP …`: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opforge.cli.shared import (
    All,
    Backends,
    Device,
    Dtypes,
    Implementations,
    InProcess,
    Json,
    Names,
    backend_names,
    device_to_time,
    dtypes,
    exit_code,
    make_host,
    print_json,
    selected,
    settings,
)
from opforge.core.errors import UsageError


def bench(
    context: typer.Context,
    operators: Names = None,
    everything: All = False,
    device: Device = "",
    dtype: Dtypes = None,
    backend: Backends = None,
    implementation: Implementations = None,
    workload: Annotated[list[str] | None, typer.Option(help="A workload by name; may be given several times. Default: those sized for this device.")] = None,
    most: Annotated[int, typer.Option(min=0, help="At most the first so many workloads of each operator. Default: all.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Verify on a selection of the cases before timing; the workload itself is verified in any case.")] = False,
    budget: Annotated[float, typer.Option(min=0.05, help="Seconds of measuring for each implementation × workload × dtype.")] = 1.0,
    samples: Annotated[int, typer.Option(min=5, help="Samples to take at least, budget permitting.")] = 30,
    cold: Annotated[bool | None, typer.Option("--cold/--warm", help="Flush the last-level cache before every sample (GPU). Default: cold on a GPU, warm on a CPU.")] = None,
    report: Annotated[Path | None, typer.Option(help="Folder for report.html, report.md, report.json and report.csv. Default: reports/<run>.")] = None,
    in_process: InProcess = False,
    json: Json = False,
) -> None:
    """Verify every implementation, time those that pass on real workloads, place them under this machine's roof, compare with torch eager, record.

    Exit code 1 if any verdict is a failure.
    """
    from opforge.cli.progress import Watcher
    from opforge.cli.reports import pasts_of, write_reports
    from opforge.cli.tables import print_table
    from opforge.machine import detect, measure_ceilings
    from opforge.timing import Plan
    from opforge.verdicts import BRIEF, QUICK
    from opforge.workbench import Options, bench as run_bench, ensure_chosen

    registry = settings(context).registry()
    names = selected(registry, operators, everything)
    known_dtypes, known_backends = dtypes(dtype), backend_names(backend)
    where = device_to_time(device)
    if cold and where == "cpu":
        raise UsageError("--cold needs a device whose cache can be flushed; on a CPU measure warm (leave --cold away).")
    _known_workloads(registry, names, workload)
    plan = Plan(samples=samples, budget_s=budget, cache="cold" if (where != "cpu" if cold is None else cold) else "warm")
    options = Options(
        device=where,
        dtypes=known_dtypes,
        backends=known_backends,
        implementations=tuple(implementation or ()),
        workloads=tuple(workload or ()),
        most=most,
        effort=QUICK if quick else BRIEF,
        plan=plan,
    )
    ensure_chosen(registry, names, options)
    if report is not None:
        report.mkdir(parents=True, exist_ok=True)  # a folder that cannot be made is better known before measuring than after
    if not detect(where).ceilings:
        typer.echo(f"measuring what this {where} can do at best (once; kept for later runs) …", err=True)
        measure_ceilings(where)
    host = make_host(in_process)
    records = []
    pasts = {}
    ended: Exception | None = None
    try:
        with settings(context).open_store() as store, Watcher(quiet=json) as watcher:
            try:
                for record in run_bench(registry, names, options, host, listener=watcher):
                    store.add([record])
                    records.append(record)
            except Exception as error:  # noqa: BLE001 - raised below, when what was found before it has been shown
                ended = error
            pasts = pasts_of(store, records)
    finally:
        host.close()
    if ended is not None and not records:
        raise ended
    if json:
        print_json(records)
    else:
        print_table(records)
    folder = report or Path("reports") / records[0].run
    for path in write_reports(records, folder, detect(where), pasts=pasts):
        typer.echo(f"wrote {path}", err=True)
    if ended is not None:
        raise ended
    raise typer.Exit(exit_code(records))


def _known_workloads(registry: object, names: tuple[str, ...], given: list[str] | None) -> None:
    from opforge.core.errors import unknown
    from opforge.registry import Registry

    assert isinstance(registry, Registry)
    known = {workload.name for name in names for workload in registry.operator(name).workloads}
    for name in given or ():
        if name not in known:
            raise unknown("workload", name, known)
