"""`opforge list`: the operators that are known here."""

from __future__ import annotations

import typer

from opforge.cli.shared import Json, print_json, settings
from opforge.core.language.errors import OpforgeError


def list_operators(context: typer.Context, json: Json = False) -> None:
    """List the operators and their implementations, family by family. Imports no toolchain. An operator that cannot be
    read is listed with the reason (exit code 1).
    """
    registry = settings(context).registry()
    rows: list[dict[str, object]] = []
    for name in registry.names():
        row: dict[str, object] = {"operator": name, "family": registry.family(name)}
        try:
            operator = registry.unasked(name)
            implementations = list(registry.implementation_names(name))
        except OpforgeError as error:
            rows.append({**row, "about": "", "implementations": [], "broken": str(error)})
        else:
            rows.append(
                {
                    **row,
                    "about": operator.about,
                    "dtypes": operator.dtypes,
                    "folder": str(operator.folder),
                    "implementations": implementations,
                }
            )
    if json:
        print_json(rows)
    else:
        # what lies in no family comes last
        families = sorted({str(row["family"]) for row in rows}, key=lambda family: (not family, family))
        width = max((len(str(row["operator"])) for row in rows), default=0)
        for family in families:
            typer.echo(family or "of no family")
            for row in rows:
                if row["family"] == family:
                    typer.echo(
                        f"  {row['operator']:<{width}}  {row['about'] or 'cannot be read: ' + str(row['broken'])}"
                    )
                    if row["implementations"]:
                        typer.echo(f"  {'':<{width}}  {', '.join(row['implementations'])}")  # type: ignore[arg-type]
    raise typer.Exit(int(any("broken" in row for row in rows)))
