"""`opforge records`: look at, export and import what was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opforge.cli.shared import Json, print_json, settings
from opforge.core.errors import UsageError


def records(
    context: typer.Context,
    action: Annotated[str, typer.Argument(metavar="ACTION", help="show (default), export or import.")] = "show",
    target: Annotated[str, typer.Argument(metavar="[FILE or ID]", help="A record's id (show), or a JSON-lines file (export, import).")] = "",
    operator: Annotated[str, typer.Option(help="Only this operator.")] = "",
    run: Annotated[str, typer.Option(help="Only this run.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most this many, the newest.")] = 50,
    json: Json = False,
) -> None:
    """Show records, export them as JSON lines, or import such a file. Importing validates every line and takes all or none."""
    from opforge.cli.tables import print_table

    with settings(context).open_store() as store:
        if action == "show":
            found = [store.get(target)] if target else store.query(operator=operator or None, run=run or None, limit=limit)
            if json or target:
                print_json(found)
            else:
                print_table(found)
        elif action == "export" and target:
            lines = list(store.export(operator=operator or None, run=run or None))
            Path(target).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            typer.echo(f"wrote {len(lines)} records to {target}")
        elif action == "import" and target:
            if not Path(target).is_file():
                raise UsageError(f"{target} is not a file. Export one with: opforge records export FILE")
            taken = store.import_lines(Path(target).read_text(encoding="utf-8").splitlines())
            typer.echo(f"imported {taken} records from {target}")
        else:
            raise UsageError("Say one of: opforge records show [ID] · opforge records export FILE · opforge records import FILE")
