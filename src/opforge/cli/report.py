"""`opforge report`: pages and tables from records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opforge.cli.shared import Json, print_json, settings
from opforge.core.errors import UsageError


def report(
    context: typer.Context,
    operators: Annotated[list[str] | None, typer.Argument(metavar="[OPERATOR…]", help="Only these operators. Default: all in the run.")] = None,
    run: Annotated[str, typer.Option(help="A run by its id. Default: the newest one with timings.")] = "",
    source: Annotated[Path | None, typer.Option("--from", help="Read records from a JSON-lines file instead of the store.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder to write to. Default: reports/<run>.")] = None,
    table: Annotated[bool, typer.Option("--table", help="Print the README's benchmark table (Markdown) and write nothing.")] = False,
    json: Json = False,
) -> None:
    """Write report.html, report.md, report.json and report.csv for one run, without measuring anything again."""
    from opforge.cli.reports import write_reports
    from opforge.machine import descriptors, detect
    from opforge.report import benchmark_table
    from opforge.store import read_lines

    if source is not None:
        if not source.is_file():
            raise UsageError(f"{source} is not a file. Export one with: opforge records export FILE")
        records = list(read_lines(source.read_text(encoding="utf-8").splitlines()))
    else:
        with settings(context).open_store() as store:
            newest = run or store.newest_run()
            records = store.query(run=newest) if newest else []
    records = [record for record in records if not operators or record.operator in operators]
    if not records:
        raise UsageError("No records to report. Make some with: opforge bench --all")
    if table:
        typer.echo(benchmark_table(records))
        return
    if json:
        print_json(records)
        return
    spec = next((spec for spec in descriptors().values() if spec.name == records[0].device), None)
    here = detect("cpu")
    for path in write_reports(records, output or Path("reports") / records[0].run, here if here.name == records[0].device else spec):
        typer.echo(f"wrote {path}")
