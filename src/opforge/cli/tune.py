"""`opforge tune OP …`: the fastest right point of each declared space, kept for dispatch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opforge.cli.shared import (
    Backends,
    Dtypes,
    Implementations,
    Json,
    OneOperator,
    Shapes,
    backend_names,
    checked,
    device_or_default,
    make_host,
    own_configs,
    own_shapes,
    print_json,
    selected,
    settings,
    workloads_to_time,
)
from opforge.core.language import units
from opforge.core.language.errors import UsageError

if TYPE_CHECKING:
    from opforge.core.definition.device import DeviceSpec
    from opforge.core.evidence.record import Record
    from opforge.store import Store
    from opforge.tuning import Trial, Tuned

INTO = ("user", "package")
"""Where a choice may be kept."""
FRONT = 8
"""So many points of a front are shown; all of them are in the JSON."""


def tune(
    context: typer.Context,
    operator: OneOperator,
    device: Annotated[
        str,
        typer.Option(
            help="Torch device type: cpu, cuda, … Default: the accelerator if there is one. Or a described device "
            "(a100, my_chip.json): as --target, measured on a device of its kind that is here."
        ),
    ] = "",
    dtype: Dtypes = None,
    backend: Backends = None,
    implementation: Implementations = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(help="A workload by name; may be given several times. Default: those sized for this device."),
    ] = None,
    shape: Shapes = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE,…",
            help="Search among points with these values alone, beside the default: BLOCK=512,num_warps=8; may be given "
            "several times.",
        ),
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            metavar="DEVICE",
            help="Points that this described device could run too: a name (a100) or a file (my_chip.json). What is "
            "found is measured here, and not kept.",
        ),
    ] = "",
    trials: Annotated[
        int,
        typer.Option(
            min=0, help="Points to try at most for each implementation × workload × dtype. 0: every valid point."
        ),
    ] = 64,
    weights: Annotated[
        str,
        typer.Option(
            metavar="NAME=WEIGHT,…",
            help="What a point costs, where that is not its time alone: time, memory, energy, error by weight, as "
            "time=0.6,memory=0.3,energy=0.1. The search follows it, and the final too.",
        ),
    ] = "",
    seed: Annotated[int, typer.Option(help="Of the order in which points are tried.")] = 0,
    strategy: Annotated[
        str,
        typer.Option(
            help="How points are chosen: model (learns from every point), coarse, pruning, random, exhaustive."
        ),
    ] = "model",
    cold: Annotated[
        bool, typer.Option("--cold", help="Do not learn from records of other devices, dtypes and shapes.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure again what an interrupted run of the same search had measured.")
    ] = False,
    prior: Annotated[
        list[Path] | None,
        typer.Option(
            help="Results of another tuner to begin with: T4, a Kernel Tuner cache, MxNxK:dtype choices, or a Python "
            "file with triton.Config(…). May be given several times."
        ),
    ] = None,
    requalify: Annotated[
        bool,
        typer.Option(
            "--requalify",
            help="After an upgrade: verify and time the former winners, the runners-up on record and the defaults "
            "again, and say what moved. No search.",
        ),
    ] = False,
    budget: Annotated[float, typer.Option(min=0.05, help="Seconds of measuring for each point.")] = 0.2,
    limit: Annotated[
        float, typer.Option(min=0, help="Seconds for all of it, about, shared among what is to be tuned. 0: no limit.")
    ] = 0.0,
    jobs: Annotated[
        int,
        typer.Option(min=0, help="Compilers at once. 0: half of the processors on a CPU, all but two beside a GPU."),
    ] = 0,
    compile_only: Annotated[
        bool,
        typer.Option(
            "--compile-only", help="Compile what would be tried first, into the caches, and end: no kernel runs."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Search and record, and leave the choices as they are.")
    ] = False,
    into: Annotated[
        str,
        typer.Option(
            metavar="PLACE",
            help="Where choices for opforge's own operators are kept: user (your data folder) or package (beside the "
            "kernels, to ship them).",
        ),
    ] = "user",
    json: Json = False,
) -> None:
    """Search the declared spaces: each valid point is judged on the workload and timed interleaved with the best until
    then.

    The fastest implementation and config of each workload × dtype is verified with all cases and kept in your data
    folder (~/.local/share/opforge/tuned, or under XDG_DATA_HOME). The operators of your own --home keep theirs beside
    the kernels, in tuned/DEVICE.json. `opforge.ops` reads both, yours before those that ship, while the programs are
    unchanged.

    Every trial is recorded, a failure with its reason. A point is not measured again if its compiled code is that of an
    earlier point. A point that is right but takes more than 1.1 times as long as the best is dropped.

    Defaults come first. An implementation that takes more than twice as long as the fastest default is searched last,
    with what is left of --limit. Several searches may run at once, on one device too: they measure one at a time.

    A model of the earlier points says which comes next. It begins with the records of the same implementation on other
    devices, dtypes and shapes. An interrupted run, even a killed one, continues when the same command is given again:
    no point is measured twice.

    Ctrl-C (or SIGTERM) ends the search after the current point: the best so far is verified and kept. A second one ends
    at once; every trial is on record then too. Exit code 1 if no point passed for some workload, 130 after Ctrl-C.
    """
    import signal
    import time

    from opforge.cli.progress import telling
    from opforge.core.definition.implementation import COMPARED_WITH
    from opforge.machine import detect
    from opforge.timing import Plan
    from opforge.trial import compiling_without_torch, start_ahead
    from opforge.trial.verified_before import proven
    from opforge.tuning import NAMES, TuneOptions, compile_first, tune as run_tune
    from opforge.tuning.weighing import parse_weights
    from opforge.workbench.configs import ensure_taken

    entered = time.monotonic()
    registry = settings(context).registry()
    (name,) = selected(registry, [operator], False)
    definition = registry.operator(name)
    host = make_host(False)
    context.call_on_close(host.close)
    backends = backend_names(backend)
    items = [
        item
        for item in registry.implementations(name)
        if not compile_only
        and item.backend not in COMPARED_WITH
        and (not backends or item.backend in backends)
        and (not implementation or item.name in implementation)
    ]
    # while this process imports PyTorch, which takes as long
    start_ahead(host, items, device)
    context.with_resource(compiling_without_torch(items, device))
    where, meant = _places(device, target)
    options = TuneOptions(
        device=where,
        dtypes=checked("dtype", dtype, definition.dtypes),
        backends=backends,
        implementations=checked(
            "implementation", implementation, (item.name for item in registry.implementations(name))
        ),
        workloads=(
            *checked("workload", workload, (item.name for item in definition.workloads)),
            *own_shapes(registry, [name], shape, checked("dtype", dtype, definition.dtypes)),
        ),
        trials=trials,
        weights=parse_weights(weights),
        settings=own_configs(config),
        target=meant,
        seed=seed,
        strategy=checked("strategy", [strategy], NAMES)[0],
        fresh=fresh,
        priors=tuple(prior or ()),
        requalify=requalify,
        into_package=checked("place", [into], INTO)[0] == "package",
        plan=Plan(samples=10, budget_s=budget, cache="warm" if where == "cpu" else "cold"),
        jobs=jobs,
        # importing PyTorch is a part of it, and on a busy machine no small one
        limit_s=max(limit / 4, limit - (time.monotonic() - entered)) if limit else None,
    )
    ensure_taken(
        [item for item in registry.implementations(name) if item.name in (implementation or [item.name])],
        options.settings,
    )
    workloads_to_time(definition, where, options.workloads, options.dtypes)
    if compile_only:
        made, asked = compile_first(registry, name, options)
        print_json({"compiled": made, "asked": asked}) if json else typer.echo(
            f"{name}: {made} of {asked} points compiled"
        )
        raise typer.Exit(int(made == 0 < asked))
    found: list[Tuned] = []
    said: list[dict[str, object]] = []

    def tell(trial: Trial) -> None:
        said.append(
            {
                "implementation": trial.implementation,
                "config": trial.config.as_dict(),
                "outcome": trial.outcome,
                "reason": trial.reason,
                "stack_bytes": trial.stack_bytes,
                "record": trial.record.id,
            }
        )
        say(_line(trial))

    ended = False

    def end(number: int, frame: object) -> None:
        nonlocal ended
        if ended:
            raise KeyboardInterrupt
        ended = True
        typer.echo(
            "opforge: no more points are begun; what was found is verified and kept. Once more ends at once.", err=True
        )

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with settings(context).open_store() as store, telling(quiet=json) as say:
            for tuned in run_tune(
                registry,
                name,
                options,
                host,
                add=lambda record: _add(store, record),
                listener=tell,
                write=not dry_run and options.target is None,
                stop=lambda: ended,
                earlier=() if cold and not requalify else store.query(operator=name),
                # what dispatch believes of a default needs no second verification either; its time is audited
                proven=proven(store, registry, [name], detect(where).name, any_version=True),
            ):
                found.append(tuned)
                if not json:
                    typer.echo(_words(tuned))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        host.close()
    if requalify and not found and not json:
        typer.echo(f"{name}: nothing was chosen for these workloads on this device. Choose first: opforge tune {name}")
    if json:
        print_json({"tuned": [_plain(tuned) for tuned in found], "trials": said})
    raise typer.Exit(130 if ended else int(not found or any(tuned.record is None for tuned in found)))


def _places(device: str, target: str) -> tuple[str, DeviceSpec | None]:
    """The torch device type that measures, and the described device that is meant, if any: `target`, or `device` where
    that is a description and no torch device type. Raises UsageError where both describe one, or one of another kind
    than what measures.
    """
    from opforge.machine import described, device_named

    meant = target
    if device and described(device):
        if target:
            raise UsageError(f"--device {device} and --target {target} both describe a device that is meant. Give one.")
        meant, device = device, ""
    where = device_or_default(device)
    spec = device_named(meant) if meant else None
    if spec is not None and spec.kind == "cpu" and meant != target:
        # beside an accelerator the processor is not what is taken when nothing is said
        where = spec.kind
    if spec is not None and spec.kind != where:
        raise UsageError(
            f"{spec.name} is a {spec.kind} device, and what is measured here is {where}: no point of it runs there. "
            f"Compile for it: opforge inspect OPERATOR IMPLEMENTATION --device {meant}"
        )
    return where, spec


def _add(store: Store, record: Record) -> None:
    store.add([record])


def _line(trial: Trial) -> str:
    """One trial, for whoever waits."""
    timing = trial.record.timing
    words = (
        f"{units.seconds(timing.median_s)}, {trial.ratio:.3f} of the best"
        if timing is not None and trial.ratio is not None
        else f"{trial.outcome}: {trial.reason[:160]}"
    )
    words += f"; {trial.stack_bytes} bytes of stack" if trial.stack_bytes else ""
    return (
        f"{trial.elapsed_s:5.0f} s {trial.number:>4}/{trial.total} {trial.implementation} {trial.workload} "
        f"{trial.dtype} [{trial.config}] {words}"
    )


def _words(tuned: Tuned) -> str:
    """What the trials came to, in a few lines."""
    counted = (
        f"{tuned.timed} timed, {tuned.slower} slower, {tuned.same_code} with code already measured, "
        f"{tuned.failed} failed"
    )
    counted += f"; {tuned.resumed} of them by an earlier run" if tuned.resumed else ""
    counted += f"; {tuned.refused} points refused by limits" if tuned.refused else ""
    if tuned.record is None or tuned.record.timing is None:
        return f"{tuned.operator} {tuned.workload} {tuned.dtype}: no choice ({counted}); {tuned.why}"
    from opforge.tuning.weighing import cost_words

    gained = f", {units.ratio(1 / tuned.over_default)} its default" if tuned.over_default else ""
    chosen = f"{tuned.record.implementation} [{tuned.record.config}] {units.seconds(tuned.record.timing.median_s)}"
    lines = [f"{tuned.operator} {tuned.workload} {tuned.dtype}: {chosen}{gained} ({counted}); {tuned.why}"]
    lines += [f"  {name} [{config}] takes {units.ratio(ratio)} as long" for name, config, ratio in tuned.others]
    if len(tuned.front) > 1:
        lines.append("  beaten by no other point in every objective:")
        lines += [f"    {name} [{config}] {cost_words(cost)}" for name, config, cost in tuned.front[:FRONT]]
    return "\n".join(lines)


def _plain(tuned: Tuned) -> dict[str, object]:
    timing = tuned.record.timing if tuned.record else None
    return {
        "workload": tuned.workload,
        "dtype": tuned.dtype,
        "implementation": tuned.record.implementation if tuned.record else None,
        "config": tuned.record.config.as_dict() if tuned.record else None,
        "median_s": timing.median_s if timing else None,
        "over_default": tuned.over_default,
        "others": [
            {"implementation": name, "config": config.as_dict(), "over_fastest": ratio}
            for name, config, ratio in tuned.others
        ],
        "front": [{"implementation": name, "config": config.as_dict(), **cost} for name, config, cost in tuned.front],
        "timed": tuned.timed,
        "slower": tuned.slower,
        "same_code": tuned.same_code,
        "failed": tuned.failed,
        "resumed": tuned.resumed,
        "refused": tuned.refused,
        "kept": tuned.kept,
        "why": tuned.why,
    }
