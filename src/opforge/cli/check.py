"""`opforge check --against NAME`: slower, less accurate, or fine? For CI."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from opforge.cli.shared import Device, InProcessOption, Json, checked, device_to_time, make_host, print_json, settings
from opforge.core.language import units


def check(
    context: typer.Context,
    against: Annotated[str, typer.Option(help="A baseline by name, or its file.")],
    operators: Annotated[
        list[str] | None, typer.Argument(metavar="[OPERATOR…]", help="Only these operators of the baseline.")
    ] = None,
    device: Device = "",
    everything: Annotated[bool, typer.Option("--all", help="Measure cases whose code is the baseline's, too.")] = False,
    allowed: Annotated[
        float,
        typer.Option(
            min=1.0, help="Time ratio up to which a case is fine, unless the baseline has a threshold of its own."
        ),
    ] = 1.05,
    accuracy: Annotated[
        float,
        typer.Option(
            min=1.0,
            help="Factor by which the 99th percentile of the error, and the share of clipped elements, may grow.",
        ),
    ] = 1.25,
    budget: Annotated[float, typer.Option(min=0.05, help="Seconds of measuring for each case and look.")] = 5.0,
    junit_file: Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML here.")] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Write Markdown for a pull request here.")
    ] = None,
    write_thresholds: Annotated[
        bool,
        typer.Option(
            "--write-thresholds",
            help="Afterwards, tighten the baseline's thresholds to mean + 3 sigma of the last 100 records.",
        ),
    ] = False,
    in_process: InProcessOption = False,
    json: Json = False,
) -> None:
    """Verify and measure the cases of a baseline, interleaved with the baseline's own revision where git has it, and
    compare time and accuracy.

    A suspicion is confirmed by a second, independent look. Exit code 0: fine. 1: a regression. 4: unsure.
    """
    from opforge.gate import (
        Policy,
        check as run_check,
        find_baseline,
        junit,
        load_baseline,
        markdown,
        save_baseline,
        tightened,
    )
    from opforge.gate.remeasure import histories, remeasurer, unchanged
    from opforge.timing import Plan

    registry = settings(context).registry()
    path = find_baseline(against)
    baseline = load_baseline(path)
    wanted = checked("operator", operators, {record.operator for record in baseline.records})
    keys = [key for key in baseline.by_key() if not wanted or key.operator in wanted]
    where = device_to_time(device)
    plan = Plan(budget_s=budget, cache="warm" if where == "cpu" else "cold")
    same = () if everything else unchanged(registry, baseline, where, plan)
    host = make_host(in_process)
    policy = Policy(allowed=allowed, accuracy=accuracy)
    try:
        with tempfile.TemporaryDirectory(prefix="opforge-check-") as scratch:
            look = remeasurer(registry, baseline, host, policy, plan, device=where, scratch=Path(scratch))
            report = run_check(
                baseline.name,
                [key for key in keys if key not in same],
                look,
                policy,
                baseline.thresholds,
                [key for key in keys if key in same],
            )
    finally:
        host.close()
    if write_thresholds:
        with settings(context).open_store() as store:
            tighter = tightened(baseline, histories(store, baseline), allowed=allowed)
        changed = sum(tighter.thresholds.get(name) != baseline.thresholds.get(name) for name in tighter.thresholds)
        save_baseline(tighter, path)
        report = replace(report, notes=(*report.notes, f"tightened {units.plural(changed, 'threshold')} in {path}"))
    for file, text in ((junit_file, junit(report)), (markdown_file, markdown(report))):
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            typer.echo(f"wrote {file}", err=True)
    if json:
        findings = [
            {"case": str(finding.key), "state": finding.state, "words": finding.words, "comparison": finding.comparison}
            for finding in report.findings
        ]
        print_json(
            {"baseline": report.baseline, "exit_code": report.exit_code, "findings": findings, "notes": report.notes}
        )
    else:
        for finding in report.findings:
            typer.echo(f"{finding.state}: {finding.key}: {finding.words}")
        for note in report.notes:
            typer.echo(note)
    raise typer.Exit(report.exit_code)
