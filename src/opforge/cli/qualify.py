"""`opforge qualify [OP …]`: evidence of one's own, so that calls take the fastest verified kernel."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated

import typer

from opforge.cli.shared import (
    Device,
    Dtypes,
    Json,
    Names,
    Shapes,
    device_to_time,
    dtypes,
    exit_code,
    make_host,
    own_shapes,
    print_json,
    selected,
    settings,
)
from opforge.core.definition.own_shapes import operators_of
from opforge.core.language import units
from opforge.core.language.errors import Inadequate, OpforgeError, UsageError, all_of


def qualify(
    context: typer.Context,
    operators: Names = None,
    device: Device = "",
    dtype: Dtypes = None,
    minutes: Annotated[
        float, typer.Option(min=0.1, help="No operator is begun after this many minutes; run it again to go on.")
    ] = 30.0,
    shape: Shapes = None,
    json: Json = False,
) -> None:
    """Verify and time what `opforge.ops` may choose on this device, most used operators first; all of them where none
    is named.

    With `--shape` it is those shapes alone, for instance the file that `opforge model analyse --workloads` wrote.
    What is believed already is passed over, so that an interrupted call goes on where it ended. Everything is recorded
    as by `opforge bench`. Exit code 1 if any verdict is a failure.
    """
    from opforge.cli.progress import Watcher
    from opforge.machine import ensure_ceilings
    from opforge.workbench import bench, steps

    registry = settings(context).registry()
    operators = list(operators or operators_of(shape or ()))
    names = selected(registry, operators, not operators)
    where = device_to_time(device)
    known = dtypes(dtype)
    own = {name: own_shapes(registry, [name], shape, known) for name in names} if shape else None
    ensure_ceilings(where, partial(typer.echo, err=True))
    began, records, done, left = time.monotonic(), [], 0, 0
    unusable: list[OpforgeError] = []
    host = make_host(False)
    try:
        with settings(context).open_store() as store, Watcher(quiet=False) as watcher:
            for step in steps(registry, names, known, where, store, own):
                if time.monotonic() - began > minutes * 60:
                    left += 1
                    continue
                new_records = []
                try:
                    for record in bench(registry, [step.operator], step.options, host, listener=watcher):
                        store.add([record])
                        new_records.append(record)
                except (Inadequate, UsageError) as error:
                    # its definition is wrong: the others' are not
                    unusable.append(error)
                records += new_records
                done += 1
                summary = (
                    f"{step.operator} {', '.join(step.options.dtypes)}: {units.plural(len(new_records), 'record')}, "
                    f"{units.seconds(time.monotonic() - began)} so far"
                )
                typer.echo(summary, err=json)
    finally:
        host.close()
    if json:
        print_json(
            {
                "qualified": done,
                "left": left,
                "records": [record.id for record in records],
                "seconds": time.monotonic() - began,
            }
        )
        if unusable:
            raise all_of(unusable, others=done > len(unusable))
        raise typer.Exit(exit_code(records))
    typer.echo(
        f"{done} qualified in {units.seconds(time.monotonic() - began)}"
        + (f", {left} left; go on with: opforge qualify" if left else "")
        if done or left
        else "nothing is left to qualify"
    )
    if unusable:
        raise all_of(unusable, others=done > len(unusable))
    raise typer.Exit(exit_code(records))
