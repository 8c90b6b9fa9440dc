"""`opforge model checklist MODEL`: what a patched model is asked before it is deployed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opforge.cli.model_shared import Batch, Dtype, Fields, Length, Model, Only, model_and_example
from opforge.cli.shared import Device, Json, print_json


def checklist(
    model: Model,
    fields: Fields = None,
    batch: Batch = 1,
    length: Length = 128,
    dtype: Dtype = "float32",
    device: Device = "",
    only: Only = None,
    sla: Annotated[float, typer.Option(help="Milliseconds that 99 of 100 calls may take. 0: none are given.")] = 0.0,
    memory: Annotated[
        float, typer.Option(help="MiB that a call may hold. 0: what the unpatched model's call holds.")
    ] = 0.0,
    calls: Annotated[int, typer.Option(min=20, help="Calls of the long run.")] = 10_000,
    budget: Annotated[float, typer.Option(min=0.0, help="Seconds of comparing with the unpatched model.")] = 5.0,
    report: Annotated[
        Path | None, typer.Option(help="Write the page (checklist.html) and the items (checklist.json) here.")
    ] = None,
    json: Json = False,
) -> None:
    """Ask a patched model what a deployment checklist asks: speed, latency, memory, errors, edges, NaN, decay and leaks
    over 10,000 calls, threads, odd inputs, monitoring and fallback. Each item has its number, pass, fail or
    not applicable, and its evidence.

    Exit code 1 when an item fails.
    """
    from opforge.model.checklist import Limits, Outcome, checklist as checked_items, page, summary

    loaded, example = model_and_example(model, fields, batch, length, dtype, device, training=True)
    items = checked_items(
        loaded.module,
        example,
        Limits(latency_s=sla / 1e3 or None, memory_bytes=int(memory * 2**20) or None, calls=calls),
        budget_s=budget,
        only=only,
        tell=lambda words: None if json else typer.echo(f"… {words}", err=True),
    )
    if report is not None:
        from json import dumps

        from opforge.core.evidence.record import to_json

        report.mkdir(parents=True, exist_ok=True)
        (report / "checklist.html").write_text(page(loaded.name, items), encoding="utf-8")
        (report / "checklist.json").write_text(dumps(to_json(list(items)), indent=1) + "\n", encoding="utf-8")
    if json:
        print_json({"model": loaded.name, "items": list(items)})
    else:
        typer.echo(f"{loaded.name}: {loaded.about}")
        for item in items:
            typer.echo(f"{item.outcome:14} {item.number:10} {item.about}: {item.evidence}")
        typer.echo(summary(items))
        if report is not None:
            typer.echo(f"page: {report / 'checklist.html'}")
    if any(item.outcome is Outcome.FAIL for item in items):
        raise typer.Exit(1)
