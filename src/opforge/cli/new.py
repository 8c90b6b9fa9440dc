"""`opforge new NAME`: an operator's folder that runs as it stands."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from opforge.cli.shared import Json, print_json, settings


def new(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The operator's name: lower-case letters, digits, underscores.")],
    home: Annotated[Path | None, typer.Option(help="The folder of operator folders to put it into. Default: the one given before the verb, else operators.")] = None,
    json: Json = False,
) -> None:
    """Make an operator's folder from a name: a definition, kernels on five backends and a README, running as they stand."""
    from opforge.forge import create

    given = settings(context)
    folder = home or (*given.homes, Path("operators"))[0]
    written = create(given.registry(), name, folder)
    if json:
        print_json([str(path) for path in written])
        return
    for path in written:
        typer.echo(f"wrote {path}")
    typer.echo(f"next: opforge --home {shlex.quote(str(folder))} bench {name}")
