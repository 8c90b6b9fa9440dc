"""`opforge machine`: what this device can do at best."""

from __future__ import annotations

from typing import Annotated

import typer

from opforge.cli.shared import Device, Json, device_or_default, print_json
from opforge.core.language import units


def machine(
    device: Device = "",
    again: Annotated[bool, typer.Option("--again", help="Measure again even if ceilings are already known.")] = False,
    json: Json = False,
) -> None:
    """Measure this device's ceilings once (copy, read, matrix products by dtype, launch floor) and keep them as the
    roofline's roof.

    What a descriptor brings of another device of its kind stands in until then, and is shown as known, not as measured
    here.
    """
    from opforge.machine import detect, load_ceilings, measure_ceilings

    where = device_or_default(device)
    spec = detect(where)
    if again or not load_ceilings(spec):
        spec = measure_ceilings(where)
    if json:
        print_json(spec)
        return
    typer.echo(
        f"{spec.name}: {spec.units} units, {units.size(spec.memory_bytes)} memory, last-level cache "
        f"{units.size(spec.cache_bytes)}"
    )
    if spec.nominal_bytes_per_s:
        typer.echo(f"  vendor     memory {units.bytes_per_s(spec.nominal_bytes_per_s)}  ({spec.source})")
    here = {ceiling.name for ceiling in load_ceilings(spec)}
    wide = max((len(ceiling.name) for ceiling in spec.ceilings), default=0)
    for ceiling in spec.ceilings:
        figure = {"B/s": units.bytes_per_s, "FLOP/s": units.flops_per_s, "s": units.seconds}[ceiling.unit](
            ceiling.value
        )
        typer.echo(
            f"  {'measured' if ceiling.name in here else 'known':<10} {ceiling.name:<{wide}} {figure:<14} "
            f"{ceiling.how}, {ceiling.measured_at[:10]}"
        )
