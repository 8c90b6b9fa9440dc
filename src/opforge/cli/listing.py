"""`opforge list`: the operators that are known here."""

from __future__ import annotations

import typer

from opforge.cli.shared import Json, print_json, settings
from opforge.core.errors import OpforgeError


def list_operators(context: typer.Context, json: Json = False) -> None:
    """List the operators and their implementations. Imports no toolchain. An operator that cannot be read is listed with the reason (exit code 1)."""
    registry = settings(context).registry()
    rows: list[dict[str, object]] = []
    for name in registry.names():
        try:
            operator = registry.operator(name)
            implementations = list(registry.implementation_names(name))
        except OpforgeError as error:
            rows.append({"operator": name, "about": "", "implementations": [], "broken": str(error)})
        else:
            rows.append({"operator": name, "about": operator.about, "dtypes": operator.dtypes, "folder": str(operator.folder), "implementations": implementations})
    if json:
        print_json(rows)
    else:
        width = max((len(str(row["operator"])) for row in rows), default=0)
        for row in rows:
            typer.echo(f"{row['operator']:<{width}}  {row['about'] or 'cannot be read: ' + str(row['broken'])}")
            if row["implementations"]:
                typer.echo(f"{'':<{width}}  {', '.join(row['implementations'])}")  # type: ignore[arg-type]
    raise typer.Exit(int(any("broken" in row for row in rows)))
