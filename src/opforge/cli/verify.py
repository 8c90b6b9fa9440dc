"""`opforge verify OP …`: every case against the float64 oracle, hidden ones included; replays; the check of the
check; contracts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opforge.cli.shared import (
    All,
    Backends,
    Configs,
    Device,
    Dtypes,
    Implementations,
    InProcessOption,
    Json,
    Names,
    Shapes,
    backend_names,
    checked,
    device_or_default,
    dtypes,
    exit_code,
    make_host,
    own_configs,
    own_shapes,
    print_json,
    selected,
    settings,
)
from opforge.core.language.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opforge.core.evidence.record import Record


def verify(
    context: typer.Context,
    operators: Names = None,
    everything: All = False,
    device: Device = "",
    dtype: Dtypes = None,
    backend: Backends = None,
    implementation: Implementations = None,
    shape: Shapes = None,
    config: Configs = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A selection of the cases and a few hidden ones: about a tenth of the work.")
    ] = False,
    replay: Annotated[
        str, typer.Option(metavar="RECORD", help="Run a recorded verification again, on exactly the recorded values.")
    ] = "",
    adequacy: Annotated[
        bool,
        typer.Option(
            "--adequacy",
            help="Check the check: offer zeros, constants, shifted and shuffled results to each operator's bound.",
        ),
    ] = False,
    contracts: Annotated[
        bool,
        typer.Option(
            "--contracts",
            help="Check the operator as a PyTorch function: gradients, opcheck, torch.compile, vmap, aliasing.",
        ),
    ] = False,
    sanitize: Annotated[
        str,
        typer.Option(
            metavar="TOOL",
            help="Run some cases of what passes under compute-sanitizer: memcheck, racecheck, initcheck or synccheck.",
        ),
    ] = "",
    soak: Annotated[
        bool,
        typer.Option("--soak", help="Call what passes 10,000 times as well: do answers drift, does memory leak?"),
    ] = False,
    huge: Annotated[
        bool,
        typer.Option(
            "--huge",
            help="Tensors of more than 2^31 elements as well, where rows are independent: takes gigabytes of memory.",
        ),
    ] = False,
    pipeline: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Verify a pipeline of operators, stage by stage and as a whole; `all`: each that is known.",
        ),
    ] = "",
    page: Annotated[
        Path | None, typer.Option(help="Where to write the page. Default: reports/verification/OPERATOR.html.")
    ] = None,
    in_process: InProcessOption = False,
    json: Json = False,
) -> None:
    """Verify implementations against the float64 oracle, each in a process of its own. Exit code 1 if any verdict is a
    failure.

    With --shape they are verified at that shape alone: nobody's evidence that they are right at others.
    """
    asked = [
        name
        for name, given in (
            ("--replay", bool(replay)),
            ("--adequacy", adequacy),
            ("--contracts", contracts),
            ("--pipeline", bool(pipeline)),
        )
        if given
    ]
    if len(asked) > 1:
        raise UsageError(f"{' and '.join(asked)} are different jobs. Give one of them.")
    from opforge.cli import verify_extras

    if replay:
        raise typer.Exit(verify_extras.replayed(context, replay, in_process=in_process, json=json))
    registry = settings(context).registry()
    if pipeline:
        if operators or everything:
            raise UsageError(f"A pipeline names its operators itself. Say: opforge verify --pipeline {pipeline}")
        from opforge.cli.verify_pipeline import pipelines_verified

        job = (pipeline, device_or_default(device), dtypes(dtype), backend_names(backend))
        raise typer.Exit(pipelines_verified(registry, *job, quick=quick, in_process=in_process, json=json))
    names = selected(registry, operators, everything)
    if adequacy:
        raise typer.Exit(verify_extras.check_adequacy(registry, names, dtypes(dtype), json=json))
    if contracts:
        raise typer.Exit(
            verify_extras.check_contracts(registry, names, dtypes(dtype), device_or_default(device), json=json)
        )
    from opforge.cli.progress import Watcher
    from opforge.cli.tables import print_printed, print_table
    from opforge.report import verification_rows
    from opforge.verify import DEFAULT, QUICK
    from opforge.workbench import BenchOptions, ensure_chosen, verify_all
    from opforge.workbench.extra_checks import run_extra_checks

    if sanitize:
        from opforge.runner.worker.sanitizer import TOOLS
        from opforge.verify.extra.sanitize import ready

        checked("tool of compute-sanitizer", [sanitize], TOOLS)
        ready(device_or_default(device))
    options = BenchOptions(
        dtypes=dtypes(dtype),
        backends=backend_names(backend),
        device=device_or_default(device),
        implementations=tuple(implementation or ()),
        configs=own_configs(config),
        workloads=own_shapes(registry, names, shape, dtypes(dtype), timed=False),
        timed=False,
        effort=QUICK if quick else DEFAULT,
    )
    ensure_chosen(registry, names, options)
    host = make_host(in_process)
    records: list[Record] = []
    ended: Exception | None = None
    try:
        with settings(context).open_store() as store, Watcher(quiet=json) as watcher:
            verified = verify_all(registry, names, options, host, listener=watcher)
            if sanitize or soak or huge:
                verified = run_extra_checks(
                    registry,
                    verified,
                    host,
                    options.device,
                    sanitize=sanitize,
                    soak=soak,
                    huge=huge,
                    progress=lambda words: typer.echo(f"  {words}", err=True),
                )
            for record in verified:
                store.add([record])
                records.append(record)
    except Exception as error:  # noqa: BLE001 - raised below, when what was found before it has been shown
        ended = error
    finally:
        host.close()
    if ended is not None and not records:
        raise ended
    if json:
        print_json(records)
    else:
        print_table(records, verification_rows(records))
        print_printed(records)
        verify_extras.print_replays(context, records)
    for path in _write_pages(records, page):
        typer.echo(f"wrote {path}", err=True)
    if ended is not None:
        raise ended
    raise typer.Exit(exit_code(records))


def _write_pages(records: Sequence[Record], page: Path | None) -> list[Path]:
    """One page per operator, or all in the file that was named."""
    from opforge.report import verification_page

    names = tuple(dict.fromkeys(record.operator for record in records))
    groups = (
        {page: list(records)}
        if page is not None
        else {
            Path("reports/verification") / f"{name}.html": [r for r in records if r.operator == name] for name in names
        }
    )
    for path, members in groups.items():
        if members:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(
                verification_page(
                    members, title=f"Verification of {', '.join(dict.fromkeys(r.operator for r in members))}"
                ),
                encoding="utf-8",
            )
    return [path for path, members in groups.items() if members]
