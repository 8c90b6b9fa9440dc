"""`opforge model compare MODEL`: a model end to end, as it is and patched, eager and compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from opforge.cli.model_shared import Batch, Dtype, Fields, Inference, Length, Model, Only, model_and_example
from opforge.cli.shared import Device, Json, print_json

if TYPE_CHECKING:
    from opforge.model.attribution import Attribution
    from opforge.model.compare import Compared


def compare(
    model: Model,
    fields: Fields = None,
    batch: Batch = 1,
    length: Length = 128,
    dtype: Dtype = "float32",
    device: Device = "",
    inference: Inference = False,
    only: Only = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            help="eager, compile, opforge, opforge+compile, max-autotune or liger; may be given several times, and the "
            "first is what the others are held against. Default: the first four."
        ),
    ] = None,
    attribute: Annotated[
        bool, typer.Option("--attribute", help="Say which functions the difference comes from, and which are wrong.")
    ] = False,
    budget: Annotated[float, typer.Option(min=0.0, help="Seconds of sampling for each phase. 0: five rounds.")] = 10.0,
    band: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Dead band: a ratio within 1/(1+band) .. 1+band is no difference.")
    ] = 0.02,
    json: Json = False,
) -> None:
    """Compare a model as it is with the model patched, eager and in torch.compile: time in interleaved rounds, peak
    memory, and the error against float64.

    All variants share their parameters. Each is FASTER or SLOWER than the first one, the SAME, or UNSURE.
    """
    from opforge.model.attribution import attribute_model, wrong_functions
    from opforge.model.compare import USUAL, compare_model

    loaded, example = model_and_example(model, fields, batch, length, dtype, device, training=not inference)
    compared = compare_model(
        loaded.module,
        example,
        variants=variant or USUAL,
        training=not inference,
        budget_s=budget,
        band=band,
        only=only,
        tell=lambda words: None if json else typer.echo(f"… {words}", err=True),
    )
    parts = attribute_model(loaded.module, example, training=not inference) if attribute else None
    wrong = wrong_functions(loaded.module, example) if attribute else {}
    if json:
        print_json(
            {
                "model": loaded.name,
                "measured": compared.measured,
                "left_out": compared.left_out,
                "receipt": compared.receipt.as_json(),
                "attribution": parts,
                "wrong": wrong,
            }
        )
        return
    typer.echo(f"{loaded.name}: {loaded.about}")
    typer.echo(compared.receipt.text()[0])
    _table(compared)
    if parts is not None:
        _parts(parts)
        for name, words in wrong.items():
            typer.echo(f"WRONG {name}: {words}")


def _table(compared: Compared) -> None:
    from rich.console import Console
    from rich.table import Table

    from opforge.core.language import units

    table = Table(box=None, pad_edge=False)
    for at, title in enumerate(
        ("phase", "variant", "median", "speed-up", "interval", "", "first call", "peak memory", "error")
    ):
        table.add_column(title, justify="left" if at in (0, 1, 5) else "right", no_wrap=True)
    for one in compared.measured:
        against = one.against
        table.add_row(
            one.phase,
            one.name,
            units.seconds(one.median_s),
            f"{against.speedup:.3f}×" if against else "",
            f"{1 / against.high:.3f}–{1 / against.low:.3f}" if against else "",
            against.outcome if against else "baseline",
            units.seconds(one.first_s),
            units.size(one.peak_bytes) if one.peak_bytes is not None else "–",
            f"{one.error:.1e}",
        )
    console = Console(width=None if Console().is_terminal else 160)
    console.print(table)
    for name, reason in compared.left_out.items():
        typer.echo(f"{name} is left out: {reason}")


def _parts(parts: Attribution) -> None:
    from opforge.core.language import units

    typer.echo(f"where the difference comes from ({parts.rounds} rounds; unpatched {units.seconds(parts.base_s)}):")
    for part in (*sorted(parts.parts, key=lambda one: one.seconds), parts.whole):
        typer.echo(
            f"  {part.outcome:6} {part.name}: {part.seconds * 1e6:+.1f} us ({part.low * 1e6:+.1f} to "
            f"{part.high * 1e6:+.1f})"
        )
    typer.echo(f"  the parts and the whole are {abs(parts.rest) * 1e6:.1f} us apart")
