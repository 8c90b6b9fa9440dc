"""`opforge device show|check|new`: devices as data, those that ship with opforge and your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opforge.cli.shared import Json, print_json
from opforge.core.language import units
from opforge.core.language.errors import UsageError

ACTIONS = ("list", "show DEVICE", "check FILE", "new NAME")


def device(
    action: Annotated[str, typer.Argument(metavar="ACTION", help="list (default), show, check or new.")] = "list",
    name: Annotated[
        str, typer.Argument(metavar="[DEVICE]", help="A device by name, or a descriptor file (my_chip.json).")
    ] = "",
    like: Annotated[str, typer.Option(help="new: the device whose numbers are there to be changed.")] = "nvidia-h200",
    json: Json = False,
) -> None:
    """List the devices that are described, show one, check a descriptor file, or begin a new one (NAME.json, here).

    A descriptor is one JSON object: warp size, units, registers, shared memory, vector width, bandwidth and rates by
    dtype, capabilities. `build`, `inspect`, `recommend` and `tune` take its file with --device. Exit code 1 where a
    check finds something wrong.
    """
    from dataclasses import replace
    from json import dumps

    from opforge.core.evidence.record import to_json
    from opforge.machine import descriptors, device_named, problems

    if action == "list":
        known = descriptors()
        if json:
            print_json(list(known.values()))
            return
        for spec in known.values():
            rate = max(spec.nominal_flops_per_s.values(), default=0.0)
            typer.echo(
                f"{spec.name:<18} {spec.kind:<5} {spec.target:<11} {spec.units:>4} units, memory "
                f"{units.bytes_per_s(spec.nominal_bytes_per_s) if spec.nominal_bytes_per_s else 'unknown'}, at most "
                f"{units.flops_per_s(rate) if rate else 'unknown'}"
            )
    elif action == "show" and name:
        typer.echo(dumps(to_json(device_named(name)), indent=1))
    elif action == "check" and name:
        from opforge.machine.catalogue import descriptor

        if not Path(name).is_file():
            raise UsageError(f"There is no file {name}. Start one from a known device: opforge device new my-chip")
        wrong = problems(descriptor(Path(name)))
        if json:
            print_json({"file": name, "problems": wrong})
        else:
            typer.echo("\n".join(f"{name}: {problem}" for problem in wrong) or f"{name} is a device descriptor")
        raise typer.Exit(int(bool(wrong)))
    elif action == "new" and name:
        file = Path(f"{name}.json")
        if file.exists():
            raise UsageError(f"{file} is there already. Choose another name, or look at it: opforge device show {file}")
        source = f"begun as a copy of {like}: say where each number comes from"
        spec = replace(device_named(like), name=name.lower(), ceilings=(), matches=(), source=source)
        if wrong := problems(spec):
            raise UsageError(f"{name!r} cannot be a device's name: {'; '.join(wrong)}")
        file.write_text(dumps(to_json(spec), indent=1) + "\n", encoding="utf-8")
        typer.echo(f"wrote {file}, a copy of {like}. Change its numbers, then: opforge device check {file}")
    else:
        raise UsageError(f"Say one of: {' · '.join(f'opforge device {words}' for words in ACTIONS)}")
