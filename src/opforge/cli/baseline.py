"""`opforge baseline promote NAME --run RUN`: what later checks are held against."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer

from opforge.cli.shared import Json, print_json, settings
from opforge.core.language import units
from opforge.core.language.errors import UsageError


def baseline(
    context: typer.Context,
    action: Annotated[str, typer.Argument(metavar="ACTION", help="list (default), show or promote.")] = "list",
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="The baseline's name, e.g. main; or a file, for show.")
    ] = "",
    run: Annotated[
        str,
        typer.Option(
            help="The run whose records are promoted; `newest` for the newest timed one. See: opforge records"
        ),
    ] = "",
    file: Annotated[
        Path | None,
        typer.Option(
            help="Keep it here, e.g. benchmarks/main.json in the repository, instead of in the user's data folder."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Promote the records of a run to a named baseline, or look at those there are. Nothing else ever changes a
    baseline's times.
    """
    from opforge.gate import (
        Baseline,
        baseline_names,
        baseline_path,
        find_baseline,
        key_of,
        load_baseline,
        save_baseline,
        select_records,
    )

    if action == "list":
        kept_here = {known: load_baseline(find_baseline(known)) for known in baseline_names()}
        if json:
            print_json(
                [
                    {
                        "name": known,
                        "run": promoted.run,
                        "promoted_at": promoted.promoted_at,
                        "cases": len(promoted.records),
                    }
                    for known, promoted in kept_here.items()
                ]
            )
            return
        for known, promoted in kept_here.items():
            typer.echo(
                f"{known}: {units.plural(len(promoted.records), 'case')} of run {promoted.run}, "
                f"promoted {promoted.promoted_at}"
            )
        if not kept_here:
            typer.echo("no baselines yet; make one with: opforge baseline promote NAME --run newest")
    elif action == "show" and name:
        shown = load_baseline(find_baseline(name)).records
        if json:
            print_json(shown)
            return
        for record in shown:
            assert record.timing is not None  # a baseline holds nothing else
            typer.echo(
                f"{key_of(record)}: {units.seconds(record.timing.median_s)} on {record.device}, record {record.id}"
            )
    elif action == "promote" and name:
        if not run:
            raise UsageError(
                "Say which run to promote: --run RUN, or --run newest. See what there is with: opforge records"
            )
        path = file or baseline_path(name)
        with settings(context).open_store() as store:
            chosen = store.newest_run() if run == "newest" else run
            records = store.query(run=chosen) if chosen else []
        kept, refused = select_records(records)
        for refusal in refused:
            typer.echo(f"left out: {refusal}", err=True)
        if not kept:
            raise UsageError(
                f"Run {chosen or run!r} has no timing that could be promoted. Make one with: opforge bench OPERATOR"
            )
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        save_baseline(Baseline(name=name, promoted_at=now, run=kept[0].run, records=kept), path)
        if json:
            print_json({"name": name, "path": str(path), "run": kept[0].run, "cases": len(kept), "left_out": refused})
            return
        typer.echo(f"promoted {units.plural(len(kept), 'case')} of run {kept[0].run} to {path}")
    else:
        raise UsageError(
            "Say one of: opforge baseline list · opforge baseline show NAME · opforge baseline promote NAME --run RUN"
        )
