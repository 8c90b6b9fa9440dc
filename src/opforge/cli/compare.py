"""`opforge compare A B`: is A faster than B, slower, the same, or can it not be told?"""

from __future__ import annotations

from typing import Annotated

import typer

from opforge.cli.shared import (
    Device,
    Dtypes,
    InProcessOption,
    Json,
    checked,
    device_to_time,
    make_host,
    print_json,
    settings,
    workloads_to_time,
)
from opforge.core.language.errors import OpforgeError, UsageError

SIDE = (
    "OPERATOR:IMPLEMENTATION[@REVISION][[NAME=VALUE,…]], e.g. softmax:cpp_twopass@main or "
    "'softmax:triton_onepass[BLOCK=256]'"
)


def compare(
    context: typer.Context,
    a: Annotated[str, typer.Argument(metavar="A", help=SIDE)],
    b: Annotated[str, typer.Argument(metavar="B", help="The baseline that A is compared with, written the same way.")],
    device: Device = "",
    dtype: Dtypes = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(help="A workload by name; may be given several times. Default: those sized for this device."),
    ] = None,
    budget: Annotated[
        float,
        typer.Option(
            min=0.05, help="Seconds of measuring for each workload × dtype; a look is finished once it has begun."
        ),
    ] = 5.0,
    band: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Dead band: a ratio within 1/(1+band) .. 1+band is no difference.")
    ] = 0.01,
    python_a: Annotated[
        str,
        typer.Option(
            help="Folder or interpreter of another virtual environment for A (its torch, triton, …; this opforge)."
        ),
    ] = "",
    python_b: Annotated[str, typer.Option(help="The same for B.")] = "",
    in_process: InProcessOption = False,
    json: Json = False,
) -> None:
    """Compare two implementations, revisions, configs or Python environments: FASTER, SLOWER, SAME or UNSURE is said of
    A.

    Both are verified, then sampled in pairs in random order until the 99 % bootstrap interval of the median ratio lies
    clear of the dead band or inside it, 240 pairs at most. Over several workloads and dtypes the words are corrected
    for their number (Holm). Exit code 0 whatever the outcome; 1 when A or B is wrong or cannot take part anywhere.
    """
    from opforge.cli.progress import telling
    from opforge.timing import Plan, Rule, geometric_mean, sentence
    from opforge.workbench import compare_sides, corrected_outcomes, parse_side

    registry = settings(context).registry()
    mine, theirs = parse_side(a, python_a), parse_side(b, python_b)
    if mine.operator != theirs.operator:
        raise UsageError(
            f"{mine.operator} and {theirs.operator} are different operators; compare two implementations of one."
        )
    where = device_to_time(device)
    operator = registry.operator(mine.operator)
    kinds = checked("dtype", dtype, operator.dtypes) or operator.dtypes
    chosen = workloads_to_time(operator, where, workload, kinds)
    plan = Plan(budget_s=budget, cache="warm" if where == "cpu" else "cold")
    host = make_host(in_process)
    try:
        found = []
        with telling(quiet=json) as say:
            for outcome in compare_sides(
                registry,
                mine,
                theirs,
                host,
                device=where,
                dtypes=kinds,
                workloads=chosen,
                rule=Rule(band=band),
                plan=plan,
            ):
                found.append(outcome)
                say(f"measured {outcome.workload} {outcome.dtype}")
    finally:
        host.close()
    outcomes = corrected_outcomes(found)
    compared = [outcome.comparison for outcome in outcomes if outcome.comparison is not None]
    mean = geometric_mean(compared, band=band) if len(compared) > 1 else None
    if json:
        print_json(
            {
                "comparisons": compared,
                "mean": mean,
                "not_compared": {
                    f"{outcome.workload} {outcome.dtype}": outcome.reason for outcome in outcomes if outcome.reason
                },
            }
        )
    else:
        for outcome in outcomes:
            where_words = f"{outcome.workload} {outcome.dtype}"
            typer.echo(
                f"{where_words}: {sentence(outcome.comparison) if outcome.comparison is not None else outcome.reason}"
            )
            for note in outcome.comparison.notes if outcome.comparison is not None else ():
                typer.echo(f"  {note}")
        if mean is not None:
            typer.echo(
                f"{mean.outcome} over {mean.comparisons} comparisons: geometric mean of the time ratios "
                f"{mean.ratio:.3f} ({mean.low:.3f} to {mean.high:.3f})"
            )
    if not compared:
        raise OpforgeError(f"Nothing could be compared: {outcomes[0].reason}")
