"""What the actions on a model that runs share: the words that name it, and the model with its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from opforge.cli.shared import checked, device_or_default
from opforge.core.definition.dtypes import DTYPES

if TYPE_CHECKING:
    from opforge.model.source import Loaded

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="package.module:factory, a configuration of transformers by the name of its class, a config.json, or a "
        "saved program (.pt2).",
    ),
]
Fields = Annotated[list[str] | None, typer.Argument(metavar="[FIELD=VALUE]…", help="Fields of the configuration.")]
Batch = Annotated[int, typer.Option(min=1, help="Sequences or images at once, of inputs that are made here.")]
Length = Annotated[int, typer.Option(min=1, help="Tokens of a sequence, of inputs that are made here.")]
Dtype = Annotated[str, typer.Option(help="Of floating-point weights and inputs.")]
Inference = Annotated[bool, typer.Option("--inference", help="The forward alone, without a training step.")]
Only = Annotated[
    list[str] | None,
    typer.Option(help="Replace calls of this function alone (rms_norm, linear, …); may be given several times."),
]


def model_and_example(
    model: str, fields: list[str] | None, batch: int, length: int, dtype: str, device: str, *, training: bool
) -> tuple[Loaded, Any]:
    """The model of a command line on its device, and an example of its call, with labels where a step is trained."""
    from opforge.model.agreement import Inputs
    from opforge.model.source import load_model

    checked("dtype", [dtype], DTYPES)
    where = device_or_default(device)
    loaded = load_model(model, fields or (), batch=batch, length=length, dtype=dtype, device=where)
    loaded.module.to(where)
    named = {**loaded.named, **loaded.fixed}
    if training and loaded.labels is not None:
        named["labels"] = loaded.labels
        named.pop("decoder_input_ids", None)
    return loaded, Inputs(given=tuple(loaded.args), named=named)
