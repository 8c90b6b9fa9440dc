"""`opforge history OP …`: how times went, and where they stepped."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from opforge.cli.shared import All, Dtypes, Implementations, Json, Names, dtypes, print_json, selected, settings
from opforge.core.language.errors import UsageError


def history(
    context: typer.Context,
    operators: Names = None,
    everything: All = False,
    dtype: Dtypes = None,
    implementation: Implementations = None,
    workload: Annotated[
        list[str] | None, typer.Option(help="A workload by name; may be given several times. Default: all.")
    ] = None,
    smallest: Annotated[
        float, typer.Option(min=0.001, help="The least change that counts as a step, as a fraction.")
    ] = 0.02,
    limit: Annotated[
        int,
        typer.Option(
            min=10,
            help="At most this many timings of each operator (or implementation, workload and dtype that is named), "
            "the newest.",
        ),
    ] = 2000,
    compile: Annotated[
        bool,
        typer.Option("--compile", help="Show how long compilers took instead, version by version of each source."),
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Folder for one SVG picture per series.")] = None,
    json: Json = False,
) -> None:
    """Show each series of timings (operator × implementation × workload × dtype × machine) with its steps.

    A step is found by fitting levels to the whole series (L1 Potts), never by comparing with the last run alone.
    """
    from opforge.gate import series_of

    if compile and (workload or plot is not None):
        raise UsageError("--compile is about sources: it goes with no --workload and no --plot. Leave them away.")
    registry = settings(context).registry()
    names = selected(registry, operators, everything)
    kinds = dtypes(dtype)
    if compile:
        _compile_times(context, names, implementation, kinds, limit, json=json)
        return
    with settings(context).open_store() as store:
        every: list[str | None] = [None]
        # each once: a timing that is read twice would be two points
        asked = itertools.product(
            names, dict.fromkeys(implementation or every), dict.fromkeys(workload or every), kinds or every
        )
        points = [
            point
            for name, one, case, kind in asked
            for point in store.series(
                operator=name, implementation=one, workload=case, dtype=kind, limit=limit, timed=True
            )
        ]
    found = series_of(points, smallest=smallest)
    if json:
        print_json(
            [
                {
                    "device": series.device,
                    "fingerprint": series.fingerprint,
                    **vars(series.key),
                    "points": series.points,
                    "changes": series.changes,
                }
                for series in found
            ]
        )
    else:
        for series in found:
            typer.echo(f"{series.key} on {series.device} [{series.fingerprint}]: {series.words}")
        if not found:
            typer.echo("no timings recorded yet; make some with: opforge bench OPERATOR")
    if plot is not None:
        from opforge.gate.history_chart import picture_of

        plot.mkdir(parents=True, exist_ok=True)
        for series in found:
            key = series.key
            # records may come from elsewhere: a name is no path
            name = re.sub(
                r"[^\w.-]+", "_", f"{key.operator}-{key.implementation}-{key.workload}-{key.dtype}-{series.fingerprint}"
            )
            file = plot / f"{name}.svg"
            file.write_text(picture_of(series), encoding="utf-8")
            typer.echo(f"wrote {file}", err=True)


def _compile_times(
    context: typer.Context,
    names: Sequence[str],
    implementations: Sequence[str] | None,
    dtypes: Sequence[str],
    limit: int,
    *,
    json: bool,
) -> None:
    """Each implementation's compile times, from the newest `limit` records of its operator."""
    from opforge.gate.compile_history import compile_history
    from opforge.report.record_text import clean_lines

    with settings(context).open_store() as store:
        records = [
            record
            for name in names
            for record in store.query(operator=name, limit=limit)
            if (not implementations or record.implementation in implementations)
            and (not dtypes or record.dtype in dtypes)
        ]
    found = compile_history(records)
    if json:
        print_json(found)
        return
    for series in found:
        # records may come from elsewhere
        typer.echo(clean_lines(series.words))
    if not found:
        typer.echo("no compile times recorded yet; make some with: opforge verify OPERATOR")
