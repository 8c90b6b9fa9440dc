"""`opforge recommend OP SIZES`: which implementation to take, without measuring anything."""

from __future__ import annotations

from typing import Annotated

import typer

from opforge.cli.shared import Json, OneOperator, checked, print_json, settings
from opforge.core.language import units
from opforge.core.language.errors import UsageError


def recommend(
    context: typer.Context,
    operator: OneOperator,
    sizes: Annotated[
        list[int], typer.Argument(metavar="SIZES", help="Its axes in order, as opforge show OPERATOR says.")
    ],
    device: Annotated[
        str,
        typer.Option(help="A known device (h200, nvidia-a100-80g, …) or a descriptor file of yours (my_chip.json)."),
    ] = "nvidia-h200",
    dtype: Annotated[str, typer.Option(help="One dtype. Default: bfloat16, or the operator's first.")] = "",
    json: Json = False,
) -> None:
    """Predict which implementation is fastest for a shape on a device, from the times of other shapes.

    The times are those of the store and those that ship with opforge. A device without any is predicted from another's,
    relative to the roofs that their descriptors say. How often the prediction is right is said beside it: every
    measured shape is predicted from the others. Nothing runs; opforge tune measures.
    """
    from opforge.machine import descriptors, device_named
    from opforge.store.evidence_facts import fact_of
    from opforge.store.shipped import shipped
    from opforge.tuning.recommend import recommend as predict, relatives_of

    registry = settings(context).registry()
    definition = registry.operator(operator)
    chosen = (
        checked("dtype", [dtype], definition.dtypes)[0]
        if dtype
        else ("bfloat16" if "bfloat16" in definition.dtypes else definition.dtypes[0])
    )
    names = [name for name in (definition.workloads or definition.cases)[0].axes if name not in definition.derived]
    if len(sizes) != len(names):
        raise UsageError(f"{operator} has the axes {', '.join(names)}. Give one size for each of them.")
    first = (definition.workloads or definition.cases)[0].axes
    given = {name: (size,) if isinstance(first[name], tuple) else size for name, size in zip(names, sizes, strict=True)}
    axes = definition.completed(given, definition.scalar_values({}))
    spec = device_named(device)
    with settings(context).open_store() as store:
        own = [fact_of(record) for record in store.query(operator=operator)]
    known = descriptors()
    # of another kind (a processor for an accelerator) times say nothing
    alike = sorted(name for name, other in known.items() if name != spec.name and other.kind == spec.kind)
    places = [spec.name, *alike]
    facts = {name: [*[item for item in own if item.device == name], *shipped(operator, name)] for name in places}
    timed = {name: sum(item.median_s is not None for item in facts[name]) for name in places}
    # its own times, else those of a device that runs the same code, else the most
    places.sort(
        key=lambda name: (name != spec.name, name in known and not known[name].is_sibling_of(spec), -timed[name])
    )
    measured_on = next((name for name in places if timed[name]), spec.name)
    measured = spec if measured_on == spec.name else known[measured_on]
    siblings = [(known[name], facts[name]) for name in alike if timed[name] and known[name].is_sibling_of(measured)]
    relatives = relatives_of(registry, definition, lambda name: shipped(name, measured_on))
    answer = predict(registry, definition, axes, chosen, spec, facts[measured_on], measured, siblings, relatives)
    if json:
        print_json(
            {
                "operator": operator,
                "axes": axes,
                "dtype": chosen,
                "device": answer.device,
                "measured_on": answer.measured_on,
                "predicted": [
                    {
                        "implementation": item.implementation,
                        "config": item.config.as_dict(),
                        "seconds": item.seconds,
                        "shapes": item.shapes,
                    }
                    for item in answer.predicted
                ],
                "held_out": None
                if answer.held_out is None
                else {
                    "shapes": answer.held_out.shapes,
                    "within_5_percent": answer.held_out.right,
                    "worst": answer.held_out.worst,
                },
            }
        )
        return
    call = ", ".join(f"{name}={value}" for name, value in axes.items())
    typer.echo(f"{operator} {call} {chosen} on {answer.device}, predicted:")
    for item in answer.predicted[:5]:
        time = units.seconds(item.seconds)
        typer.echo(f"  {time:>10}  {item.implementation} [{item.config}]  from {units.plural(item.shapes, 'shape')}")
    if siblings:
        typer.echo(f"  with the times of {', '.join(each.name for each, _ in siblings)}, which runs the same code")
    if answer.measured_on != answer.device:
        typer.echo(
            f"  nothing was measured on {answer.device}: these are times of {answer.measured_on}, relative to its "
            "roof. How wrong that is, is not known"
        )
    if (error := answer.held_out) is None:
        typer.echo("  too few shapes were measured to say how often this is right")
    else:
        typer.echo(
            f"  {error.shapes} measured calls predicted from other shapes on {answer.measured_on}: the winner was "
            f"within 5 % of the true one in {100 * error.right:.0f} %, at worst {units.ratio(error.worst)} its time"
        )
    typer.echo(f"  measure: opforge tune {operator}")
