"""`opforge doctor`: what works here, what is missing, and which command brings it."""

from __future__ import annotations

import typer

from opforge.cli.shared import Json, print_json, settings


def doctor(context: typer.Context, json: Json = False) -> None:
    """Say what each backend can do on this machine, what is missing, and which command installs it. Exit code 3 if no
    backend can run anything.
    """
    from opforge.backends import backends
    from opforge.machine import warnings

    lines = [capability for backend in backends().values() for capability in backend.capabilities()]
    advice = warnings("cpu")
    with settings(context).open_store() as store:
        where, health = store.url, store.doctor()
    usable = any(capability.available and capability.name.startswith("run") for capability in lines)
    if json:
        print_json({"capabilities": lines, "warnings": advice, "store": {"url": where, "health": health}})
    else:
        for capability in lines:
            mark = "yes" if capability.available else "no "
            typer.echo(f"{mark}  {capability.backend:<9} {capability.name:<21} {capability.detail}")
            if not capability.available and capability.remedy and capability.remedy not in capability.detail:
                typer.echo(f"     {'':<9} {'':<21} {capability.remedy}")
        typer.echo(f"     records   {where}: {health}")
        for step in advice:
            typer.echo(f"     warning   {step}")
    raise typer.Exit(0 if usable else 3)
