"""`opforge model patch MODEL`: what a patch makes of each call site of a model, proven by what ran."""

from __future__ import annotations

from typing import Annotated

import typer

from opforge.cli.model_shared import Batch, Dtype, Fields, Inference, Length, Model, Only, model_and_example
from opforge.cli.shared import Device, Json, print_json


def patch(
    model: Model,
    fields: Fields = None,
    batch: Batch = 1,
    length: Length = 128,
    dtype: Dtype = "float32",
    device: Device = "",
    inference: Inference = False,
    only: Only = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Hold outputs and gradients against the unpatched model's.")
    ] = True,
    json: Json = False,
) -> None:
    """Patch a model with opforge's operators, run it, and show what became of each call site: replaced by which
    operator and kernel, refused and why, or never reached.

    The model has random weights and lives in this process alone: this shows what `opforge.patch(model)` does to yours.
    Exit code 1 when the patched model computes something else than it did, 2 when no call is replaced.
    """
    from opforge.model import patch as patching, undoing

    loaded, example = model_and_example(model, fields, batch, length, dtype, device, training=not inference)
    patching.patch(loaded.module, example=example, check=check, train=not inference, only=only)
    receipt = undoing.receipt(loaded.module)
    if json:
        print_json(receipt.as_json())
        return
    typer.echo(f"{loaded.name}: {loaded.about}")
    for line in receipt.text():
        typer.echo(line)
