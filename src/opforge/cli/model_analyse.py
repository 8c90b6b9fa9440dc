"""`opforge model analyse MODEL`: what a model is made of, where its time goes, what could be gained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opforge.cli.shared import Json, checked, device_or_default, print_json, settings
from opforge.core.definition.dtypes import DTYPES
from opforge.core.language.errors import UsageError

if TYPE_CHECKING:
    from opforge.core.definition.device import DeviceSpec
    from opforge.model.analysis import Analysis


def analyse(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="package.module:factory, a configuration of transformers by the name of its class, a config.json, or "
            "a saved program (.pt2).",
        ),
    ],
    fields: Annotated[
        list[str] | None, typer.Argument(metavar="[FIELD=VALUE]…", help="Fields of the configuration.")
    ] = None,
    training: Annotated[
        bool, typer.Option("--training", help="Analyse a training step, with its backward pass.")
    ] = False,
    batch: Annotated[int, typer.Option(min=1, help="Sequences or images at once, of inputs that are made here.")] = 1,
    length: Annotated[int, typer.Option(min=1, help="Tokens of a sequence, of inputs that are made here.")] = 128,
    dtype: Annotated[str, typer.Option(help="Of floating-point weights and inputs.")] = "float32",
    device: Annotated[
        str,
        typer.Option(
            help="Whose roofs count: cpu, cuda, … or a described device (h200, my_chip.json). Times are measured where "
            "the device is here. Default: the accelerator if there is one."
        ),
    ] = "",
    meta: Annotated[
        bool, typer.Option("--meta", help="Shapes alone: models of full size need no memory, and nothing is run.")
    ] = False,
    hooks: Annotated[
        bool, typer.Option("--hooks", help="Record a call with hooks on modules, without torch.export.")
    ] = False,
    budget: Annotated[float, typer.Option(min=0.0, help="Seconds of measuring. 0: three rounds.")] = 2.0,
    report: Annotated[
        Path | None, typer.Option(help="Write the page (analysis.html) and the analysis (analysis.json) here.")
    ] = None,
    workloads: Annotated[
        Path | None, typer.Option(help="Write the shapes in which opforge's operators are called, as JSON.")
    ] = None,
    json: Json = False,
) -> None:
    """Show what a model is made of: each node of its graph with its work, its roof, its time, whether opforge has an
    operator for it, and neighbours that one kernel could compute.

    Nothing is downloaded, and weights are random. Gains are ceilings by Amdahl's law, told before anything is replaced.
    """
    from opforge.model.analyse import Asked, analyse as analyse_model
    from opforge.model.analysis import workloads_of

    checked("dtype", [dtype], [name for name in DTYPES if name.startswith(("float16", "float32", "float64", "bfloat"))])
    if workloads is not None and workloads.suffix != ".json":
        raise UsageError(f"{workloads} is no name for shapes: give one that ends with .json, as in out.json")
    where, spec, here = _device(device, meta)
    analysis = analyse_model(
        Asked(
            model=model,
            fields=fields or (),
            batch=batch,
            length=length,
            dtype=dtype,
            training=training,
            device=where,
            spec=spec,
            measure=here,
            budget_s=budget,
            hooks=hooks,
        ),
        settings(context).registry(),
        tell=lambda words: None if json else typer.echo(f"… {words}", err=True),
    )
    written: dict[str, str] = {}
    if workloads is not None:
        from json import dumps

        workloads.write_text(dumps(workloads_of(analysis), indent=1) + "\n", encoding="utf-8")
        written["workloads"] = str(workloads)
    if report is not None:
        written |= _write_report(analysis, report)
    if json:
        from opforge.model.describe import as_data

        print_json({**as_data(analysis), "written": written})
        return
    _show(analysis)
    for kind, path in written.items():
        typer.echo(f"{kind}: {path}")
    if workloads is not None:
        names = " ".join(list(workloads_of(analysis))[:2])
        if names:
            typer.echo(f"next: opforge bench {names} --shape {workloads}")


def _device(given: str, meta: bool) -> tuple[str, DeviceSpec, bool]:
    """Where tensors live, whose roofs count, and whether nodes are timed."""
    from opforge.machine import described, detect, device_named, ensure_ceilings

    if given and described(given):
        device_or_default("cpu")
        return ("meta" if meta else "cpu"), device_named(given), False
    where = device_or_default(given)
    if not meta:
        ensure_ceilings(where, lambda words: typer.echo(words, err=True))
    return ("meta" if meta else where), detect(where), not meta


def _write_report(analysis: Analysis, folder: Path) -> dict[str, str]:
    from datetime import datetime
    from json import dumps

    from opforge.model.describe import as_data
    from opforge.model.page import analysis_page

    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "analysis.json"
    data.write_text(dumps(as_data(analysis), indent=1) + "\n", encoding="utf-8")
    page = folder / "analysis.html"
    when = datetime.now().strftime("%Y-%m-%d %H:%M")
    page.write_text(analysis_page(analysis, when=when), encoding="utf-8")
    return {"page": str(page), "analysis": str(data)}


def _show(analysis: Analysis) -> None:
    from opforge.core.language import units
    from opforge.model import describe

    graph = analysis.graph
    typer.echo(f"{analysis.model}: {analysis.about}")
    typer.echo(f"graph: {describe.route_words(analysis)}; {len(graph.nodes)} nodes, {len(analysis.rows)} without views")
    if graph.note:
        typer.echo(f"note: {graph.note}")
    typer.echo(f"time: {describe.time_words(analysis)}")
    _table(describe.GAIN_TITLES, [describe.gain_cells(one) for one in analysis.by_operator[: describe.ROWS]])
    if analysis.groups:
        typer.echo("")
        _table(describe.FUSIBLE_TITLES, describe.fusible_cells(analysis))
    one = analysis.replaceable
    typer.echo("")
    typer.echo(
        f"If everything that opforge has an operator for ({units.percent(one.share)} of the time) ran at its roof, the "
        f"model would be {describe.ratio(one.at_roof)} as fast; if it took no time, {describe.ratio(one.limit)}."
    )


def _table(titles: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if Console().is_terminal else 200)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, title in enumerate(titles):
        last = at in (0, len(titles) - 1)
        table.add_column(title, justify="left" if last else "right", no_wrap=not last)
    for line in lines:
        table.add_row(*map(Text, line))
    console.print(table)
