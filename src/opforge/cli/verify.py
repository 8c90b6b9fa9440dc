"""`opforge verify OP …`: every case against the float64 oracle."""

from __future__ import annotations

import typer

from opforge.cli.shared import (
    All,
    Backends,
    Device,
    Dtypes,
    Implementations,
    InProcess,
    Json,
    Names,
    backend_names,
    device_or_default,
    dtypes,
    exit_code,
    make_host,
    print_json,
    selected,
    settings,
)


def verify(
    context: typer.Context,
    operators: Names = None,
    everything: All = False,
    device: Device = "",
    dtype: Dtypes = None,
    backend: Backends = None,
    implementation: Implementations = None,
    in_process: InProcess = False,
    json: Json = False,
) -> None:
    """Verify implementations against the float64 oracle, each in a process of its own. Exit code 1 if any verdict is a failure."""
    from opforge.cli.progress import Watcher
    from opforge.cli.tables import print_table
    from opforge.workbench import Options, verify_all

    registry = settings(context).registry()
    names = selected(registry, operators, everything)
    options = Options(device=device_or_default(device), dtypes=dtypes(dtype), backends=backend_names(backend), implementations=tuple(implementation or ()), timed=False)
    host = make_host(in_process)
    try:
        with settings(context).open_store() as store, Watcher(quiet=json) as watcher:
            records = []
            for record in verify_all(registry, names, options, host, listener=watcher):
                store.add([record])
                records.append(record)
    finally:
        host.close()
    if json:
        print_json(records)
    else:
        print_table(records)
    raise typer.Exit(exit_code(records))
