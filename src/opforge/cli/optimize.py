"""`opforge optimize NAME`: an implementation made faster in rounds of one verified change each, on record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opforge.cli.shared import (
    Device,
    Json,
    OneOperator,
    checked,
    device_to_time,
    make_host,
    print_json,
    settings,
    workloads_to_time,
)
from opforge.core.language.errors import UsageError

if TYPE_CHECKING:
    from opforge.core.definition.implementation import Implementation
    from opforge.core.evidence.optimization import OptimizationRound
    from opforge.forge.loop.engine import Engine
    from opforge.registry import Registry
    from opforge.store import Store

ENGINES = ("rules", "model", "replay")


def optimize(
    context: typer.Context,
    name: OneOperator,
    implementation: Annotated[
        str, typer.Option(help="The implementation to change. Default: the first that runs here and has rules.")
    ] = "",
    workload: Annotated[
        str, typer.Option(help="A workload by name, or a shape (lead=2x3,cols=1000). Default: the first of its scale.")
    ] = "",
    dtype: Annotated[str, typer.Option(help="One dtype. Default: the operator's first.")] = "",
    device: Device = "",
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Rounds at most.")] = 5,
    target: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Ends when the best is so many times as fast as the baseline. Default: the target of the folder's "
            "NAME_performance.py, which a task book gives; else none, and it goes on to the roof.",
        ),
    ] = None,
    baseline: Annotated[
        str, typer.Option(help="What the target is over: an implementation; start: what the loop began with.")
    ] = "torch_eager",
    engine: Annotated[
        str, typer.Option(help="Where candidates come from: rules, model (OPFORGE_MODEL_URL) or replay (of a run).")
    ] = "rules",
    conservative: Annotated[
        bool, typer.Option("--conservative", help="rules: one parameter a round, in the seeds' fixed order.")
    ] = False,
    run: Annotated[str, typer.Option(help="replay: the run to replay. Default: the newest of the operator.")] = "",
    tokens: Annotated[int, typer.Option(min=0, help="model: tokens for all rounds, question and answer.")] = 200_000,
    device_seconds: Annotated[
        float,
        typer.Option(min=0.0, help="model: seconds that candidates are compiled, verified and timed. 0: no limit."),
    ] = 0.0,
    limit: Annotated[
        float, typer.Option(min=0.0, help="Seconds for all of it: no round is begun after them. 0: no limit.")
    ] = 0.0,
    patience: Annotated[
        float,
        typer.Option(min=0.0, help="On a CPU: seconds to wait, in all, for other work to leave the processors."),
    ] = 60.0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew, whatever an interrupted run left.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Record the rounds, and change no file.")] = False,
    lang: Annotated[str, typer.Option(help="Language of optimization_log.md: en or zh.")] = "en",
    json: Json = False,
) -> None:
    """Make one implementation faster: diagnose, try the candidates of one strategy, keep what is surely faster in an
    interleaved A/B and roll the rest back; end at the target, the limit, the roof, or two UNSUREs in a row.

    The start must pass. Every round is kept in the store, so a loop that is cut short goes on where it was. The best
    replaces the file, and optimization_log.md is written beside it.
    """
    from opforge.cli.progress import telling
    from opforge.core.evidence.comparison import FASTER
    from opforge.forge.loop.choices import has_rules
    from opforge.forge.loop.model_client import endpoint_from
    from opforge.forge.loop.optimize import LoopOptions, optimize as run_loop, replaced
    from opforge.forge.write.four_files import target_of
    from opforge.machine import ensure_ceilings
    from opforge.report.optimization_log import LANGUAGES, optimization_log

    registry = settings(context).registry()
    definition = registry.operator(name)
    checked("engine", [engine], ENGINES)
    checked("language", [lang], LANGUAGES)
    if conservative and engine != "rules":
        raise UsageError("--conservative belongs to --engine rules.")
    if run and engine != "replay":
        raise UsageError("--run belongs to --engine replay: opforge optimize NAME --engine replay --run RUN")
    where = device_to_time(device)
    if engine == "model":
        endpoint_from()  # what is missing of it is said before anything is compiled
    chosen = registry.implementation(name, implementation) if implementation else _first(registry, name, where)
    if engine == "rules" and not has_rules(chosen):
        raise UsageError(
            f"{chosen.name} has no SPACE and is no code of `opforge new` that could be given one, so no rule changes "
            "it. Give it a SPACE, or let a language model write candidates: --engine model."
        )
    kind = (checked("dtype", [dtype], definition.dtypes) if dtype else definition.dtypes)[0]
    work = workloads_to_time(definition, where, [workload] if workload else None, [kind])[0]
    if baseline not in ("start", "torch_eager"):
        registry.implementation(name, baseline)
    ensure_ceilings(where, partial(typer.echo, err=True))
    wanted = target if target is not None or definition.folder is None else target_of(definition.folder)
    host = make_host(in_process=False)
    found = []
    try:
        with settings(context).open_store() as store, telling(quiet=json) as say:
            recorded = _recorded(store, name, chosen.name, run) if engine == "replay" else []
            options = LoopOptions(
                rounds=rounds,
                target=math.inf if wanted is None else wanted,
                baseline="" if baseline == "start" else baseline,
                device=where,
                limit_s=limit or None,
                write=not dry_run and engine != "replay",
                fresh=fresh or engine == "replay",
                named={"conservative": str(conservative), "rounds": str(rounds), "tokens": str(tokens)},
                start=recorded[0].best if recorded else None,
                patience_s=patience,
            )

            def make(scratch: Path) -> Engine:
                return _engine(engine, scratch, recorded, conservative, tokens, limit, device_seconds)

            for fact in run_loop(registry, chosen, work, kind, options, make, host, store, say=say):
                found.append(fact)
            past = store.rounds(operator=name, run=found[-1].run)
    finally:
        host.close()
    last = found[-1]
    if engine == "replay":
        _compared(recorded, found, json)
        return
    if not dry_run:
        log = chosen.source.parent / "optimization_log.md"
        replaced(log, optimization_log(past, lang))
        typer.echo(f"wrote {log}", err=True)
    if json:
        print_json(found)
        return
    for fact in found:
        ratio = f"{fact.over_start:.2f}x the start" if fact.over_start is not None else ""
        told = f"{fact.stage} {fact.number}" if fact.stage == "round" else fact.stage
        what = fact.strategy or fact.diagnosis.bottleneck
        typer.echo(f"{told}: {what}: {fact.decision or ratio} {fact.reason}".strip())
    over = f", {last.over_baseline:.2f}x {last.baseline}" if last.over_baseline is not None else ""
    sure = last.comparison is None or last.comparison.outcome == FASTER
    gain = f"{last.over_start or 0:.2f}x the start{over}" if sure else "not surely faster than the start"
    typer.echo(f"{name}/{chosen.name}: {gain}; run {last.run}")
    typer.echo(f"the log: opforge log {name}")


def _recorded(store: Store, operator: str, implementation: str, run: str) -> list[OptimizationRound]:
    """The rounds to replay: of a run, else of the newest of the implementation that was no replay itself."""
    rounds = [one for one in store.rounds(operator=operator) if one.implementation == implementation]
    runs = list(dict.fromkeys(one.run for one in rounds if one.engine != "replay"))
    if not runs or (run and run not in runs):
        known = ", ".join(runs[-5:]) or "none"
        raise UsageError(f"No run {run} of {operator}/{implementation} is on record; there are: {known}.")
    return [one for one in rounds if one.run == (run or runs[-1])]


def _compared(old: Sequence[OptimizationRound], new: Sequence[OptimizationRound], json: bool) -> None:
    """Say whether a replay came to the same verdicts. Exit code 1 where it did not."""
    from opforge.core.evidence.optimization import ROUND
    from opforge.forge.loop.replay import differences

    told = differences(old, new)
    if json:
        print_json({"rounds": list(new), "differences": list(told)})
    else:
        for one in new:
            if one.stage == ROUND:
                typer.echo(f"round {one.number}: {one.strategy}: {one.decision} {one.reason}")
        typer.echo("\n".join(told) or f"the same verdicts as run {old[0].run}")
    raise typer.Exit(int(bool(told)))


def _first(registry: Registry, name: str, device: str) -> Implementation:
    """The first implementation that runs natively here and that there are rules for. Raises UsageError."""
    from opforge.backends import Native, backend
    from opforge.forge.loop.choices import has_rules

    known = registry.implementations(name)
    for item in known:
        if isinstance(backend(item.backend).execution_mode(device), Native) and has_rules(item):
            return item
    raise UsageError(
        f"Nothing of {name} runs natively on {device} and has tunables or is code of `opforge new`. Name one with "
        f"--implementation; there are: {', '.join(item.name for item in known)}."
    )


def _engine(
    name: str,
    scratch: Path,
    recorded: Sequence[OptimizationRound],
    conservative: bool,
    tokens: int,
    limit: float,
    device_seconds: float,
) -> Engine:
    from opforge.forge.loop.model import Budget, Model
    from opforge.forge.loop.model_client import endpoint_from
    from opforge.forge.loop.replay import Replay
    from opforge.forge.loop.rules import Rules

    if name == "rules":
        return Rules(scratch, conservative=conservative)
    if name == "model":
        return Model(
            endpoint_from(), Budget(tokens=tokens, seconds=limit or math.inf, device_seconds=device_seconds or math.inf)
        )
    return Replay(recorded)
