"""`opforge bench OP …`: the main job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from opforge.cli.shared import (
    All,
    Backends,
    Configs,
    Device,
    Dtypes,
    Implementations,
    InProcessOption,
    Json,
    Names,
    Shapes,
    backend_names,
    checked,
    device_to_time,
    dtypes,
    exit_code,
    make_host,
    own_configs,
    own_shapes,
    print_json,
    selected,
    settings,
)
from opforge.core.definition.own_shapes import operators_of
from opforge.core.evidence.timing_terms import CALL, TERMS
from opforge.core.language import spans
from opforge.core.language.errors import UsageError

ENERGY_S = 1.0
"""For how long a kernel is called while its energy is counted: fifty steps of NVML's counter, a thousand of RAPL's."""


def bench(
    context: typer.Context,
    operators: Names = None,
    everything: All = False,
    device: Device = "",
    dtype: Dtypes = None,
    backend: Backends = None,
    implementation: Implementations = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(help="A workload by name; may be given several times. Default: those sized for this device."),
    ] = None,
    shape: Shapes = None,
    config: Configs = None,
    most: Annotated[
        int, typer.Option(min=0, help="At most the first so many workloads of each operator. Default: all.")
    ] = 0,
    grid: Annotated[
        bool,
        typer.Option(
            "--grid",
            help="Time the operators' shape classes (odd, wide, few rows, other layouts) instead of their named "
            "workloads: what dispatch chooses by.",
        ),
    ] = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Verify on a selection of the cases before timing; the workload itself is verified in any case.",
        ),
    ] = False,
    budget: Annotated[
        float, typer.Option(min=0.05, help="Seconds of measuring for each implementation × workload × dtype.")
    ] = 1.0,
    samples: Annotated[int, typer.Option(min=5, help="Samples to take at least, budget permitting.")] = 30,
    cold: Annotated[
        bool | None,
        typer.Option(
            "--cold/--warm",
            help="Flush the last-level cache before every sample (GPU). Default: cold on a GPU, warm on a CPU.",
        ),
    ] = None,
    terms: Annotated[
        list[str] | None,
        typer.Option(
            help="call: as a caller gets it, every call makes its result (default); out: `out=` given, "
            "torch by out= where it has one. Give both for both."
        ),
    ] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Verify again what this store has a full verification of, of the same code on the same cases.",
        ),
    ] = False,
    stats: Annotated[
        bool,
        typer.Option(
            "--stats",
            help="Show minimum, mean, standard deviation (std), std over mean (RSD) and the number of samples beside "
            "the median; and GOPS/W, where energy can be read (NVML, RAPL): each is called for a second more for it.",
        ),
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(help="Folder for report.html, report.md, report.json and report.csv. Default: reports/<run>."),
    ] = None,
    in_process: InProcessOption = False,
    json: Json = False,
) -> None:
    """Verify every implementation, time those that pass on real workloads, place them under this machine's roofline,
    compare with what a user would call in PyTorch, record.

    Exit code 1 if any verdict is a failure.
    """
    from opforge.cli.progress import Watcher
    from opforge.cli.report_files import pasts_of, ways_of, write_reports
    from opforge.cli.tables import print_printed, print_table
    from opforge.machine import detect, ensure_ceilings
    from opforge.report import rows
    from opforge.timing import Plan
    from opforge.timing.energy import NoMeter, meter
    from opforge.trial import compiling_without_torch, start_ahead
    from opforge.trial.verified_before import proven
    from opforge.verify import BRIEF, QUICK
    from opforge.workbench import BenchOptions, bench as run_bench, chosen, ensure_chosen

    registry = settings(context).registry()
    names = selected(registry, operators or (None if everything else operators_of(shape or ())), everything)
    known_dtypes, known_backends = dtypes(dtype), backend_names(backend)
    # a record's name for a shape of one's own is that shape
    named = tuple(name for name in workload or () if "=" not in name)
    _known_workloads(registry, names, named)
    given = [*(shape or ()), *(name for name in workload or () if "=" in name)]
    # a file may have shapes for each operator
    shapes = {name: own_shapes(registry, [name], given, known_dtypes) for name in names}
    alike = len(set(shapes.values())) == 1
    turns = [(names, shapes[names[0]])] if alike else [((name,), shapes[name]) for name in names]
    host = make_host(in_process)
    context.call_on_close(host.close)
    wanted = BenchOptions(backends=known_backends, implementations=tuple(implementation or ()))
    implementations = [item for name in names for item in chosen(registry, registry.operator(name), wanted)]
    start_ahead(host, implementations, device)
    context.with_resource(compiling_without_torch(implementations, device))
    where = device_to_time(device)
    if cold and where == "cpu":
        raise UsageError("--cold needs a device whose cache can be flushed; on a CPU measure warm (leave --cold away).")
    on = checked("terms", terms or [CALL], set(TERMS))
    plan = Plan(
        samples=samples,
        budget_s=budget,
        cache="cold" if (where != "cpu" if cold is None else cold) else "warm",
        energy_s=ENERGY_S if stats else 0.0,
    )
    options = BenchOptions(
        device=where,
        dtypes=known_dtypes,
        backends=known_backends,
        implementations=tuple(implementation or ()),
        configs=own_configs(config),
        workloads=named,
        most=most,
        grid=grid,
        effort=QUICK if quick else BRIEF,
        terms=tuple(terms for terms in TERMS if terms in on),
        plan=plan,
    )
    ensure_chosen(registry, names, options)
    if report is not None:
        report.mkdir(
            parents=True, exist_ok=True
        )  # a folder that cannot be made is better known before measuring than after
    ensure_ceilings(where, partial(typer.echo, err=True))
    counter = meter(where) if stats else None
    if isinstance(counter, NoMeter):
        typer.echo(f"{counter.reason}.", err=True)
    records = []
    pasts = {}
    ended: Exception | None = None
    try:
        with settings(context).open_store() as store, Watcher(quiet=json) as watcher:
            try:
                stands = {} if again or in_process else proven(store, registry, names, detect(where).name)
                for together, own in turns:
                    asked = replace(options, workloads=(*named, *own), proven=stands)
                    for record in run_bench(registry, together, asked, host, listener=watcher):
                        store.add([record])
                        records.append(record)
            except Exception as error:  # noqa: BLE001 - raised below, when what was found before it has been shown
                ended = error
            pasts = pasts_of(store, records)
            rounds, moves = ways_of(store, registry, records)
    finally:
        host.close()
    if ended is not None and not records:
        raise ended
    if json:
        print_json(records)
    else:
        print_table(records, rows(records, statistics=stats))
        print_printed(records)
    folder = report or Path("reports") / records[0].run
    with spans.span("report", str(folder)):
        for path in write_reports(records, folder, detect(where), pasts=pasts, rounds=rounds, moves=moves):
            typer.echo(f"wrote {path}", err=True)
    if ended is not None:
        raise ended
    raise typer.Exit(exit_code(records))


def _known_workloads(registry: object, names: tuple[str, ...], given: Sequence[str] | None) -> None:
    from opforge.core.definition.shape_classes import shape_grid
    from opforge.core.language.errors import unknown
    from opforge.registry import Registry

    assert isinstance(registry, Registry)
    if not given:
        return
    operators = [registry.operator(name) for name in names]
    classes = {
        workload.name for operator in operators for cpu in (True, False) for workload in shape_grid(operator, cpu=cpu)
    }
    known = {workload.name for operator in operators for workload in operator.workloads}
    for name in given:
        if name in classes:
            continue
        if name not in known:
            raise unknown("workload", name, known)
