"""`opforge diagnose OP IMPLEMENTATION`: what holds a kernel back, with the evidence, and what to try."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opforge.cli.shared import (
    Device,
    Json,
    OneOperator,
    checked,
    device_to_time,
    make_host,
    own_configs,
    print_json,
    settings,
    workloads_to_time,
)
from opforge.core.language.errors import UsageError

if TYPE_CHECKING:
    from opforge.core.definition.implementation import Config, Implementation
    from opforge.core.evidence.record import Record
    from opforge.registry import Registry
    from opforge.runner import Host
    from opforge.store import Store


def diagnose(
    context: typer.Context,
    operator: OneOperator,
    implementation: Annotated[str, typer.Argument(metavar="IMPLEMENTATION", help="One of its implementations.")],
    workload: Annotated[
        str, typer.Option(help="A workload by name, or a shape (lead=2x3,cols=1000). Default: the first of its scale.")
    ] = "",
    dtype: Annotated[str, typer.Option(help="One dtype. Default: the operator's first that it takes.")] = "",
    config: Annotated[
        str, typer.Option(metavar="NAME=VALUE,…", help="Tunables in place of their defaults: BLOCK=512,num_warps=8.")
    ] = "",
    device: Device = "",
    counters: Annotated[
        str,
        typer.Option(
            metavar="PATH", help="What a profiler left of this kernel: ncu's CSV file, or msprof op's folder."
        ),
    ] = "",
    again: Annotated[bool, typer.Option("--again", help="Measure now, whatever is on record.")] = False,
    json: Json = False,
) -> None:
    """Say what holds one implementation back on one workload: the class of bottleneck with its evidence (share of the
    roof, compiled code, counters by ncu or msprof), and what to try, each with its command.

    The newest time on record of the same sources is taken; where there is none, it is measured. Exit code 1 where the
    implementation is not right.
    """
    from opforge.backends import Emulated, Native, backend
    from opforge.core.evidence.diagnosis import WRONG
    from opforge.core.language.errors import EnvironmentLacks
    from opforge.forge.loop.choices import has_rules
    from opforge.inspect.counters import counters_at
    from opforge.machine import detect, ensure_ceilings
    from opforge.report.diagnosis_text import diagnosis_lines
    from opforge.verify import CaseCache
    from opforge.workbench.configs import with_settings
    from opforge.workbench.diagnosing import diagnosis_of, on_record, rivals_on_record

    registry = settings(context).registry()
    definition = registry.operator(operator)
    chosen = registry.implementation(operator, implementation)
    where = device_to_time(device)
    mode = backend(chosen.backend).execution_mode(where)
    if not isinstance(mode, Native):
        lacks = f"is executed by the {mode.how}" if isinstance(mode, Emulated) else f"can't run: {mode.what}"
        raise EnvironmentLacks(
            f"diagnose needs a time, and here {implementation} {lacks}. Run it on a machine with a GPU (--device "
            f"cuda), or see what it compiles to: opforge inspect {operator} {implementation} --target sm_90a"
        )
    takes = [kind for kind in definition.dtypes if chosen.dtypes is None or kind in chosen.dtypes]
    if not takes:
        raise UsageError(f"{implementation} takes none of the dtypes of {operator}. See: opforge show {operator}")
    kind = (checked("dtype", [dtype], definition.dtypes) if dtype else (takes[0],))[0]
    work = workloads_to_time(definition, where, [workload] if workload else None, [kind])[0]
    point = with_settings(chosen, own_configs([config])[0]) if config else chosen.default
    if counters and where == "cpu":
        raise UsageError("--counters are an accelerator's, and the device is cpu. Add --device cuda or --device npu.")
    given = counters_at(Path(counters)) if counters else None
    ensure_ceilings(where, partial(typer.echo, err=True))
    host = make_host(in_process=False)
    try:
        with settings(context).open_store() as store:
            record = None if again else on_record(store, chosen, work.name, kind, detect(where).name, point)
            if record is None:
                record = _measured(registry, chosen, work.name, kind, point, where, host, store, json)
            cases = CaseCache(registry=registry, operator=definition, host=host, device=where)
            try:
                diagnosis = diagnosis_of(
                    registry, chosen, work, record, device=where, cases=cases,
                    rivals=rivals_on_record(store, record), generated=has_rules(chosen),
                    counters=given,
                )  # fmt: skip
            finally:
                cases.close()
    finally:
        host.close()
    if json:
        print_json({"diagnosis": diagnosis, "record": record.id})
    else:
        for line in diagnosis_lines(diagnosis):
            typer.echo(line)
        typer.echo(f"record {record.id[:12]} of {record.created_at}")
    raise typer.Exit(int(diagnosis.bottleneck == WRONG))


def _measured(
    registry: Registry,
    implementation: Implementation,
    workload: str,
    dtype: str,
    config: Config,
    device: str,
    host: Host,
    store: Store,
    quiet: bool,
) -> Record:
    """The implementation benched on the workload now, and recorded."""
    from opforge.cli.progress import Watcher
    from opforge.timing import Plan
    from opforge.verify import QUICK
    from opforge.workbench import BenchOptions, bench
    from opforge.workbench.diagnosing import newest

    options = BenchOptions(
        device=device,
        dtypes=(dtype,),
        implementations=(implementation.name,),
        configs=(config,) if config.values else (),
        workloads=(workload,),
        effort=QUICK,
        plan=Plan(budget_s=0.5, cache="warm" if device == "cpu" else "cold"),
    )
    records = []
    with Watcher(quiet=quiet) as watcher:
        for record in bench(registry, (implementation.operator,), options, host, listener=watcher):
            store.add([record])
            records.append(record)
    if not records:
        raise UsageError(
            f"{implementation.name} takes nothing of {workload} in {dtype}. See: opforge show {implementation.operator}"
        )
    return newest(records, workload)
