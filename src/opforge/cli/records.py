"""`opforge records`: look at, export, import and measure again what was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opforge.cli.shared import (
    InProcessOption,
    Json,
    checked,
    device_to_time,
    exit_code,
    make_host,
    print_json,
    settings,
)
from opforge.core.definition.own_shapes import workload_named
from opforge.core.evidence.record import Record
from opforge.core.language import units
from opforge.core.language.errors import UsageError

if TYPE_CHECKING:
    from opforge.store import Store


def records(
    context: typer.Context,
    action: Annotated[
        str, typer.Argument(metavar="ACTION", help="show (default), rerun, export, import or adopt.")
    ] = "show",
    target: Annotated[
        str,
        typer.Argument(
            metavar="[FILE or ID]", help="A record's id (show, rerun), or a JSON-lines file (export, import, adopt)."
        ),
    ] = "",
    operator: Annotated[str, typer.Option(help="Only this operator.")] = "",
    run: Annotated[str, typer.Option(help="Only this run.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most this many, the newest.")] = 50,
    budget: Annotated[float, typer.Option(min=0.05, help="rerun: seconds of measuring.")] = 1.0,
    device: Annotated[
        str,
        typer.Option(help="adopt: only records of this model of device, as they name it (nvidia-h200). Default: all."),
    ] = "",
    jobs: Annotated[int, typer.Option(min=0, help="adopt: compilers at once. Default: one for each processor.")] = 0,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="export: jsonl, or another tuner's form: t4, kernel-tuner (of one search), mnk (products' winners).",
        ),
    ] = "jsonl",
    compiling: Annotated[
        bool,
        typer.Option(
            "--compile/--no-compile",
            help="adopt: whether sources whose programs differ are compiled and compared. Without, it takes a minute.",
        ),
    ] = True,
    in_process: InProcessOption = False,
    json: Json = False,
) -> None:
    """Show records, measure one of them again, export them as JSON lines, import such a file, or adopt records of other
    sources.

    `rerun ID` verifies and times what the record is about, as it is now, on this machine, and records the result beside
    it. Importing validates every line and takes all or none. A file whose name ends in .gz or .xz is
    compressed.

    `adopt [FILE]` looks at the records (of a file, else of the store) that are of another version of their source.
    Where that compiles to the same code, it is noted beside the record, and the evidence holds again; where not, the
    first differing instruction is shown. The recorded source is taken from git, and nothing runs: a GPU's code is
    compiled for it without one.
    """
    from opforge.cli.records_adopt import adopt_records
    from opforge.cli.tables import print_table
    from opforge.report import kept_rows
    from opforge.store import read_file, write_file

    with settings(context).open_store() as store:
        if action == "show":
            found = (
                [store.get(target)] if target else store.query(operator=operator or None, run=run or None, limit=limit)
            )
            if json or target:
                print_json(found)
            else:
                print_table(found, kept_rows(found))
        elif action == "rerun" and target:
            _rerun(context, store, store.get(target), budget, in_process, json)
        elif action == "export" and target:
            if form != "jsonl":
                _write_form(store, Path(target), form, operator, run, json)
                return
            lines = list(store.export(operator=operator or None, run=run or None))
            if store.damaged or store.left_out:
                _keep_apart(Path(target), lines)
            write_file(Path(target), lines)
            _say(f"wrote {units.plural(len(lines), 'record')} to {target}", {"wrote": len(lines), "file": target}, json)
        elif action == "import" and target:
            taken = store.import_lines(read_file(Path(target)))
            _say(f"imported {units.plural(taken, 'record')} from {target}", {"imported": taken, "file": target}, json)
        elif action == "adopt":
            adopt_records(
                settings(context).registry(),
                store,
                target,
                operator=operator,
                device=device,
                jobs=jobs,
                compiling=compiling,
                json=json,
            )
        else:
            actions = ("show [ID]", "rerun ID", "export FILE", "import FILE", "adopt [FILE]")
            raise UsageError(f"Say one of: {' · '.join(f'opforge records {action}' for action in actions)}")


def _write_form(store: Store, file: Path, form: str, operator: str, run: str, json: bool) -> None:
    """The records in another tuner's form, for its tools."""
    from json import dumps

    from opforge.tuning.exchange import OUT, written

    checked("format", [form], OUT)
    made = written(form, store.query(operator=operator or None, run=run or None))
    file.write_text(dumps(made, indent=1) + "\n", encoding="utf-8")
    _say(f"wrote {file} as {form}", {"file": str(file), "format": form}, json)


def _keep_apart(target: Path, lines: list[str]) -> None:
    """Of a damaged store: what could be read is written under another name, and the file that was named stays. Raises
    the exit with code 1.
    """
    from opforge.store import write_file

    rest = target.with_name(f"rest-of-{target.name}")
    write_file(rest, lines)
    read = units.plural(len(lines), "record")
    typer.echo(
        f"opforge: The store was damaged and records may be lost. What could be read ({read}) is in {rest}, and "
        f"{target} is left as it is. Add an older export: opforge records import FILE",
        err=True,
    )
    raise typer.Exit(1)


def _say(words: str, data: dict[str, object], json: bool) -> None:
    print_json(data) if json else typer.echo(words)


def _rerun(context: typer.Context, store: Store, old: Record, budget: float, in_process: bool, json: bool) -> None:
    """Bench what a record is about, record it, and show both. Exit code 1 when it fails now."""
    from opforge.machine import detect
    from opforge.store import adopted_sources, alike
    from opforge.timing import Plan
    from opforge.workbench import BenchOptions, bench

    registry = settings(context).registry_of(old)
    operator = registry.operator(old.operator)
    implementation = registry.implementation(old.operator, old.implementation)
    if old.config != implementation.default:
        side = f"{old.operator}:{old.implementation}"
        raise UsageError(
            f"It was recorded with {old.config}, which is not the default now ({implementation.default}). Hold one "
            f"against the other: opforge compare '{side}[{old.config}]' {side}"
        )
    workload = workload_named(operator, old.workload)
    if old.workload and (workload is None or dict(workload.axes) != dict(old.axes)):
        raise UsageError(
            f"{old.operator} has no workload {old.workload!r} of these sizes any more. What it has: opforge show "
            f"{old.operator}"
        )
    where = device_to_time("cpu" if old.timing is not None and old.timing.timer == "host" else "")
    cache = "warm" if where == "cpu" else old.timing.cache if old.timing is not None else "cold"
    options = BenchOptions(
        device=where,
        dtypes=(old.dtype,),
        implementations=(old.implementation,),
        workloads=(old.workload,) if old.workload else (),
        timed=bool(old.workload),
        plan=Plan(budget_s=budget, cache=cache),
    )
    host = make_host(in_process)
    try:
        again = list(bench(registry, [old.operator], options, host))
    finally:
        host.close()
    store.add(again)
    if json:
        print_json(again)
    else:
        for when, record in (("then", old), ("now", again[-1])):
            typer.echo(f"{when:<5} {_line(record)}")
        for when, differs in (
            ("another device", detect(where).name != old.device),
            (
                "another state of this machine's software or hardware",
                old.environment.fingerprint != again[-1].environment.fingerprint,
            ),
            (
                "another source of the implementation",
                not alike(old, again[-1], adopted_sources(store.adoptions(old.operator))),
            ),
        ):
            if differs:
                typer.echo(f"  now it is {when}: the times are not of the same thing")
    raise typer.Exit(exit_code(again))


def _line(record: Record) -> str:
    from opforge.report import describe

    head = (
        f"{record.created_at[:16]} {record.operator}:{record.implementation} {record.workload} {record.dtype} on "
        f"{record.device} [{record.id[:12]}]"
    )
    if record.timing is None:
        return f"{head}: {describe(record.verdict)}"
    low, high = record.timing.interval_s
    return (
        f"{head}: {units.seconds(record.timing.median_s)} (95 % interval {units.seconds(low)} to {units.seconds(high)})"
    )
