"""`opforge check-interface FOLDER`: do the files of an operator agree, and what kind of change was the last one?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opforge.cli.shared import Json, print_json
from opforge.core.language.errors import UsageError


def check_interface(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="An operator's folder.")],
    against: Annotated[
        str,
        typer.Option(
            metavar="FOLDER|REVISION", help="Say as well what changed since: another folder, or a revision of git."
        ),
    ] = "",
    claims: Annotated[
        list[str] | None,
        typer.Option(
            help="What the change is said to be: parameters, interface or logic; may be given several times. Exit "
            "code 1 where it is more."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Check that names, arity, types, defaults, returns, dtypes, devices and asserts agree over an operator's files.

    The files are read, never run. Exit code 1 where they disagree. With --against the change is classified: parameters
    only, interface or logic, and the files that should have changed with it are named.
    """
    from opforge.forge.changes import classify, ensure_claimed, state_of
    from opforge.forge.interface import check_folder

    if claims and not against:
        raise UsageError("--claims speaks of a change. Say since when: --against HEAD")
    found = check_folder(folder)
    change = None
    if against:
        before = state_of(Path(against)) if Path(against).is_dir() else state_of(folder, against)
        change = classify(before, state_of(folder))
    if json:
        print_json({"disagreements": found, "change": change})
    else:
        for one in found:
            typer.echo(f"{folder / one.file}:{one.line}: {one.what}. {one.fix}.")
        typer.echo(f"{len(found)} disagreements" if found else "the files agree")
        if change is not None:
            typer.echo(f"change since {against}: {' and '.join(change.kinds) or 'none, or words alone'}")
            for name, kinds in change.files.items():
                typer.echo(f"  {name}: {' and '.join(kinds)}")
            if change.left_out:
                typer.echo(f"  as they were, and part of such a change: {', '.join(change.left_out)}")
    if change is not None and claims:
        try:
            ensure_claimed(change, claims)
        except UsageError as error:
            error.exit_code = 1
            raise
    if found:
        raise typer.Exit(1)
