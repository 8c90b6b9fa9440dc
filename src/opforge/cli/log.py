"""`opforge log NAME` and `opforge patterns`: what optimisations tried, and what helped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opforge.cli.shared import Json, OneOperator, checked, print_json, settings
from opforge.core.language.errors import UsageError

if TYPE_CHECKING:
    from opforge.core.evidence.record import Record
    from opforge.registry import Registry


def log(
    context: typer.Context,
    name: OneOperator,
    run: Annotated[str, typer.Option(help="One run. Default: the newest of the operator.")] = "",
    lang: Annotated[str, typer.Option(help="en or zh.")] = "en",
    versions: Annotated[
        bool,
        typer.Option(
            "--versions",
            help="The version report: change, gain, profile and next step of each version; of the implementations on "
            "record, slowest first, where no optimisation is.",
        ),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write it to this file.")] = None,
    json: Json = False,
) -> None:
    """Print the log of an optimisation, rendered from its rounds on record in the seeds' template."""
    from opforge.forge.loop.optimize import replaced
    from opforge.report.optimization_log import LANGUAGES, optimization_log
    from opforge.report.versions import of_run, version_report

    checked("language", [lang], LANGUAGES)
    with settings(context).open_store() as store:
        rounds = store.rounds(operator=name)
        records = list(store.query(operator=name)) if versions and not rounds else []
    if records:
        text = _ladder(settings(context).registry(), name, records, lang)
        if out is not None:
            replaced(out, text)
        typer.echo(f"wrote {out}" if out is not None else text)
        return
    runs = list(dict.fromkeys(one.run for one in rounds))
    if not runs or (run and run not in runs):
        known = f"There are: {', '.join(runs[-5:])}." if runs else f"Make one with: opforge optimize {name}"
        raise UsageError(f"No optimisation {run or 'of ' + name} is on record. {known}")
    mine = [one for one in rounds if one.run == (run or runs[-1])]
    if json:
        print_json(mine)
        return
    text = optimization_log(mine, lang)
    if versions:
        text = version_report(of_run(mine), f"{name}: {mine[0].workload}, {mine[0].dtype}, {mine[0].device}", lang)
    if out is not None:
        replaced(out, text)
        typer.echo(f"wrote {out}")
    else:
        typer.echo(text)


def _ladder(registry: Registry, name: str, records: list[Record], lang: str) -> str:
    """The version report of what is on record for an operator: the newest run's points, each with its ladder."""
    from opforge.report.versions import of_ladder, version_report

    timed = [record for record in records if record.timing is not None and not record.trial]
    ideas = {item.name: _idea(item.source) for item in registry.implementations(name)}
    parts = []
    for workload, dtype, device in dict.fromkeys((one.workload, one.dtype, one.device) for one in timed):
        mine = {
            one.implementation: one
            for one in timed
            if (one.workload, one.dtype, one.device) == (workload, dtype, device)
        }
        if len(mine) > 1:
            parts.append(
                version_report(of_ladder(list(mine.values()), ideas), f"{name}: {workload}, {dtype}, {device}", lang)
            )
    if not parts:
        raise UsageError(f"Nothing of {name} was timed beside another. Measure its ladder with: opforge bench {name}")
    return "\n".join(parts)


def _idea(source: Path) -> str:
    """The first line of a kernel file: its idea."""
    try:
        first = source.read_text(encoding="utf-8").split("\n", 1)[0]
    except OSError:
        return ""
    return first.strip('"/ ').strip()


def patterns(
    context: typer.Context,
    operator: Annotated[str, typer.Option(help="Rounds of this operator alone.")] = "",
    device: Annotated[str, typer.Option(help="Rounds on this device alone, as records name it.")] = "",
    json: Json = False,
) -> None:
    """Count what helped in the rounds on record: by family, bottleneck and device, each with how often it was kept (and
    the 95 % interval of that share) and the median gain. The engine of rules takes them as priors.
    """
    from opforge.forge.loop.patterns import patterns as counted

    with settings(context).open_store() as store:
        found = counted(store.rounds(operator=operator or None, device=device or None))
    if json:
        print_json(list(found))
        return
    if not found:
        typer.echo("No round is on record. Make some with: opforge optimize NAME")
        return
    for one in found:
        gain = f"{one.gain:.2f}x" if one.gain is not None else "no gain"
        typer.echo(
            f"{one.family:<16} {one.bottleneck:<18} {one.strategy:<16} kept {one.kept} of {one.tried} "
            f"({one.low:.0%} to {one.high:.0%}), median {gain}, {one.device}"
        )
