"""`opforge accuracy attention`: how far a kernel is off the oracle, and what 8-bit inputs would cost."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opforge.cli.shared import Device, Json, checked, print_json, settings
from opforge.core.language.errors import UsageError

if TYPE_CHECKING:
    from opforge.core.definition.implementation import Implementation
    from opforge.registry import Registry

STUDIED = "attention"
"""The operator that has such a study."""
DTYPES = ("float32", "bfloat16", "float16")


def accuracy(
    context: typer.Context,
    operator: Annotated[str, typer.Argument(metavar="OPERATOR", help="attention has a study.")] = STUDIED,
    implementation: Annotated[
        str, typer.Option("--implementation", "-i", help="The implementation by name.")
    ] = "torch_definition",
    batch: Annotated[int, typer.Option(help="Entries of the batch.")] = 1,
    heads: Annotated[int, typer.Option(help="Heads, of queries and keys alike.")] = 4,
    length: Annotated[int, typer.Option(help="Queries, and keys.")] = 512,
    dim: Annotated[int, typer.Option(help="The head dimension.")] = 64,
    causal: Annotated[bool, typer.Option("--causal", help="A query sees no later key.")] = False,
    window_left: Annotated[int, typer.Option(help="Also a window of so many keys to the left.")] = -1,
    dropout: Annotated[float, typer.Option(help="Also dropout of this share of the weights.")] = 0.0,
    dtype: Annotated[str, typer.Option(help="Of the variants without FP8.")] = "bfloat16",
    formats: Annotated[list[str] | None, typer.Option("--format", help="e4m3 or e5m2. Default: both.")] = None,
    outliers: Annotated[float, typer.Option(help="The share of channels that are larger than the others.")] = 0.0,
    outlier_size: Annotated[float, typer.Option(help="How many times larger those are.")] = 20.0,
    group_candidates: Annotated[
        str, typer.Option(metavar="SIZE,…", help="Channels that may share a scale.")
    ] = "4,8,16,32,64",
    seed: Annotated[int, typer.Option(help="Of the values; scales are taken from those of the next seed.")] = 0,
    device: Device = "",
    thresholds: Annotated[Path | None, typer.Option(help="A TOML file of thresholds, over those that ship.")] = None,
    changed: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A threshold for this run.")
    ] = None,
    write_thresholds: Annotated[
        Path | None, typer.Option(help="Write the thresholds that ship to this file, to be edited, and end.")
    ] = None,
    choices: Annotated[
        Path | None, typer.Option(help="Group sizes by study: those in this file are used, those found written back.")
    ] = None,
    history: Annotated[
        Path | None, typer.Option(help="JSON lines: earlier runs of the same study are compared with; this is added.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="Write the histogram and the distribution of errors here.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write everything as a page here.")] = None,
    json: Json = False,
) -> None:
    """Hold attention against its float64 oracle: baseline, window, dropout, FP8 inputs in three scalings.

    FP8 inputs are scaled for the tensor, for each channel, and for groups of channels, whose size is searched by the
    share of elements that it clips. The output is stored in FP8 too. Figures beyond a threshold become advice.
    """
    from opforge.report.accuracy_page import accuracy_page, accuracy_picture, accuracy_text, trends
    from opforge.verify.extra.accuracy_advice import THRESHOLDS, advice, thresholds_from
    from opforge.verify.extra.attention_accuracy import FORMATS, Study, studied

    if operator != STUDIED:
        raise UsageError(f"{operator} has no accuracy study, {STUDIED} has. Every operator's errors: opforge verify")
    if write_thresholds is not None:
        if write_thresholds.exists():
            raise UsageError(f"{write_thresholds} is there already. Give a new file.")
        _written(write_thresholds, THRESHOLDS.read_text(encoding="utf-8"))
        return
    registry = settings(context).registry()
    item = registry.implementation(STUDIED, implementation)
    limits = thresholds_from(thresholds, changed or ())
    study = Study(
        version=implementation, batch=batch, heads=heads, length=length, dim=dim, causal=causal,
        window_left=window_left, dropout=dropout, dtype=checked("dtype", [dtype], DTYPES)[0],
        formats=tuple(checked("format", formats or list(FORMATS), tuple(FORMATS))), outliers=outliers,
        outlier_size=outlier_size, group_candidates=_sizes(group_candidates), seed=seed,
    )  # fmt: skip
    known = _object(choices)
    earlier = [run["rows"] for run in _lines(history) if run["study"] == study.key]
    runs = [{row["variant"]: row for row in rows} for rows in earlier]
    call = _caller(registry, item, device or "cpu")
    rows = studied(study, registry.operator(STUDIED), call, limits["clip_target"], known)
    advised = advice(rows, runs[-1] if runs else {}, limits)
    if choices is not None:
        _written(choices, json_module.dumps(known, indent=1) + "\n", silent=True)
    if history is not None:
        line = json_module.dumps({"study": study.key, "rows": rows})
        before = history.read_text(encoding="utf-8") if history.exists() else ""
        _written(history, f"{before}{line}\n", silent=True)
    words = accuracy_text(rows, advised)
    if over := trends([*runs, {row["variant"]: row for row in rows}]):
        words += f"\n\n{over}"
    for path, text in ((svg, accuracy_picture), (page, lambda rows: accuracy_page(study.key, rows, words))):
        if path is not None:
            _written(path, text(rows), silent=json)
    if json:
        print_json({"study": study.key, "thresholds": limits, "rows": rows, "advice": advised})
        return
    typer.echo(f"{study.key}\n\n{words}")


def _caller(registry: Registry, item: Implementation, device: str) -> Any:
    """The implementation as a function of tensors and parameters, its first output, on the processor again."""
    from opforge.dispatch import Choice, Chooser, Function

    class One(Chooser):  # type: ignore[misc, unused-ignore]
        """The implementation that was asked for."""

        def choose(self, *_: Any, **__: Any) -> Choice:
            return Choice(implementation=item, config=item.default, why="asked for", passed_over=())

    function = Function(registry.operator(STUDIED), One(registry))

    def call(tensors: Sequence[Any], scalars: Mapping[str, Any]) -> Any:
        return function(*(tensor.to(device) for tensor in tensors), **scalars)[0].cpu()

    return call


def _sizes(words: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in words.split(","))
    except ValueError:
        raise UsageError(f"{words!r} are no sizes. Write --group-candidates 4,8,16") from None


def _object(path: Path | None) -> dict[str, int]:
    """Group sizes by study, of a file that may not be there yet."""
    found: Any = _parsed(path, path.read_text(encoding="utf-8")) if path is not None and path.exists() else {}
    if not isinstance(found, dict) or not all(isinstance(size, int) and size > 0 for size in found.values()):
        raise UsageError(f"{path} does not hold group sizes by study. Give a new file, or one that opforge wrote.")
    return found


def _lines(path: Path | None) -> list[dict[str, Any]]:
    """Earlier runs, of a file that may not be there yet."""
    if path is None or not path.exists():
        return []
    found = [_parsed(path, line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not all(isinstance(run, dict) and {"study", "rows"} <= set(run) for run in found):
        raise UsageError(f"{path} does not hold runs of a study. Give a new file, or one that opforge wrote.")
    return found


def _parsed(path: Path, text: str) -> Any:
    try:
        return json_module.loads(text)
    except ValueError as error:
        raise UsageError(f"{path}: {error}. Give a new file, or one that opforge wrote.") from error


def _written(path: Path, text: str, *, silent: bool = False) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}. Give a file in a folder that exists.") from error
    if not silent:
        typer.echo(f"wrote {path}")
