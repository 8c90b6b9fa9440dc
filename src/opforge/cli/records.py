"""`opforge records`: look at, export, import and measure again what was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opforge.cli.shared import InProcess, Json, device_to_time, exit_code, make_host, print_json, settings
from opforge.core import units
from opforge.core.errors import UsageError
from opforge.core.record import Record

if TYPE_CHECKING:
    from opforge.store import Store


def records(
    context: typer.Context,
    action: Annotated[str, typer.Argument(metavar="ACTION", help="show (default), rerun, export or import.")] = "show",
    target: Annotated[str, typer.Argument(metavar="[FILE or ID]", help="A record's id (show, rerun), or a JSON-lines file (export, import).")] = "",
    operator: Annotated[str, typer.Option(help="Only this operator.")] = "",
    run: Annotated[str, typer.Option(help="Only this run.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most this many, the newest.")] = 50,
    budget: Annotated[float, typer.Option(min=0.05, help="rerun: seconds of measuring.")] = 1.0,
    in_process: InProcess = False,
    json: Json = False,
) -> None:
    """Show records, measure one of them again, export them as JSON lines, or import such a file.

    `rerun ID` verifies and times what the record is about, as it is now, on this machine, and records the result beside it.
    Importing validates every line and takes all or none. A file whose name ends in .gz is compressed.
    """
    from opforge.cli.tables import print_table
    from opforge.store import read_file, write_file

    with settings(context).open_store() as store:
        if action == "show":
            found = [store.get(target)] if target else store.query(operator=operator or None, run=run or None, limit=limit)
            if json or target:
                print_json(found)
            else:
                print_table(found)
        elif action == "rerun" and target:
            _rerun(context, store, store.get(target), budget, in_process, json)
        elif action == "export" and target:
            lines = list(store.export(operator=operator or None, run=run or None))
            write_file(Path(target), lines)
            _say(f"wrote {units.plural(len(lines), 'record')} to {target}", {"wrote": len(lines), "file": target}, json)
        elif action == "import" and target:
            taken = store.import_lines(read_file(Path(target)))
            _say(f"imported {units.plural(taken, 'record')} from {target}", {"imported": taken, "file": target}, json)
        else:
            raise UsageError("Say one of: opforge records show [ID] · opforge records rerun ID · opforge records export FILE · opforge records import FILE")


def _say(words: str, data: dict[str, object], json: bool) -> None:
    print_json(data) if json else typer.echo(words)


def _rerun(context: typer.Context, store: Store, old: Record, budget: float, in_process: bool, json: bool) -> None:
    """Bench what a record is about, record it, and show both. Exit code 1 when it fails now."""
    from opforge.machine import detect
    from opforge.timing import Plan
    from opforge.workbench import Options, bench

    registry = settings(context).registry()
    operator = registry.operator(old.operator)
    implementation = registry.implementation(old.operator, old.implementation)
    if old.config != implementation.default:
        side = f"{old.operator}:{old.implementation}"
        raise UsageError(
            f"It was recorded with {old.config}, which is not the default now ({implementation.default}). Hold one against the other: opforge compare '{side}[{old.config}]' {side}"
        )
    workload = next((workload for workload in operator.workloads if workload.name == old.workload), None)
    if old.workload and (workload is None or dict(workload.axes) != dict(old.axes)):
        raise UsageError(f"{old.operator} has no workload {old.workload!r} of these sizes any more. What it has: opforge show {old.operator}")
    where = device_to_time("cpu" if old.timing is not None and old.timing.timer == "host" else "")
    cache = "warm" if where == "cpu" else old.timing.cache if old.timing is not None else "cold"
    options = Options(
        device=where,
        dtypes=(old.dtype,),
        implementations=(old.implementation,),
        workloads=(old.workload,) if old.workload else (),
        timed=bool(old.workload),
        plan=Plan(budget_s=budget, cache=cache),
    )
    host = make_host(in_process)
    try:
        found = list(bench(registry, [old.operator], options, host))
    finally:
        host.close()
    store.add(found)
    if json:
        print_json(found)
    else:
        for words, record in (("then", old), ("now", found[-1])):
            typer.echo(f"{words:<5} {_line(record)}")
        for words, differs in (
            ("another device", detect(where).name != old.device),
            ("another state of this machine's software or hardware", old.environment.fingerprint != found[-1].environment.fingerprint),
            ("another source of the implementation", old.source_sha256 != found[-1].source_sha256),
        ):
            if differs:
                typer.echo(f"  now it is {words}: the times are not of the same thing")
    raise typer.Exit(exit_code(found))


def _line(record: Record) -> str:
    from opforge.report import describe

    head = f"{record.created_at[:16]} {record.operator}:{record.implementation} {record.workload} {record.dtype} on {record.device} [{record.id[:12]}]"
    if record.timing is None:
        return f"{head}: {describe(record.verdict)}"
    low, high = record.timing.interval_s
    return f"{head}: {units.seconds(record.timing.median_s)} (95 % interval {units.seconds(low)} to {units.seconds(high)})"
