"""`opforge VERB …`: the table of verbs, and what every verb shares."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from opforge import __version__
from opforge.cli import baseline, bench, build, check, compare, doctor, history, inspect, listing, machine, new, records, report, show, sweep, verify
from opforge.cli.shared import Settings
from opforge.core.errors import OpforgeError

app = typer.Typer(
    name="opforge",
    help="A workbench for GPU operators: define once, implement on several backends, verify, time, compare.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"opforge {__version__}")
        raise typer.Exit


@app.callback()
def everything(
    context: typer.Context,
    home: Annotated[list[Path] | None, typer.Option(help="A folder of operator folders, beside the package's own. May be given several times.")] = None,
    store: Annotated[str, typer.Option(help="Where records are kept: a file, or any SQLAlchemy URL.", envvar="OPFORGE_STORE")] = "",
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    """Options that stand before the verb."""
    context.obj = Settings(homes=tuple(home or ()), store=store)


app.command("doctor")(doctor.doctor)
app.command("list")(listing.list_operators)
app.command("show")(show.show)
app.command("verify")(verify.verify)
app.command("bench")(bench.bench)
app.command("report")(report.report)
app.command("build")(build.build)
app.command("inspect")(inspect.inspect)
app.command("new")(new.new)
app.command("compare")(compare.compare)
app.command("sweep")(sweep.sweep)
app.command("history")(history.history)
app.command("baseline")(baseline.baseline)
app.command("check")(check.check)
app.command("machine")(machine.machine)
app.command("records")(records.records)


def main() -> None:
    """Entry point: an OpforgeError becomes one line and its exit code (1 a verdict failed, 2 usage, 3 the environment lacks something)."""
    try:
        app()
    except OpforgeError as error:
        print(f"opforge: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("opforge: interrupted; what was recorded until now is kept", file=sys.stderr)
        sys.exit(130)
