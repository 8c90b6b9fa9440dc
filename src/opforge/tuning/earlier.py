"""What earlier searches and benches say of an implementation's space, as traces for a warm start."""

from __future__ import annotations

import json
from collections.abc import Sequence

from opforge.core.definition.implementation import Config, Implementation
from opforge.core.definition.operator import Operator, Workload
from opforge.core.evidence.record import Record
from opforge.core.evidence.verdict import Broken, Crash, Mismatch, Timeout, Verdict
from opforge.core.language.errors import UsageError
from opforge.registry.tuned_choices import entries, known_files
from opforge.tuning.strategies import Failure, Measured, Outcome, Trace

MOST_TRACES = 6
"""Each costs a fit of some hundred points, and their mean changes little beyond a few."""


def stage_of(verdict: Verdict) -> str:
    """Where a point failed: "compile", "launch", "wrong" or "slow"."""
    match verdict:
        case Mismatch():
            return "wrong"
        case Timeout(compiling=compiling):
            return "compile" if compiling else "slow"
        case Broken(reason=reason) if "compil" in reason.lower():
            return "compile"
        case _:
            return "launch"


def traces_of(
    operator: Operator, implementation: Implementation, workload: Workload, dtype: str, records: Sequence[Record]
) -> tuple[Trace, ...]:
    """From the records of this implementation on any device, in any dtype, on any shape, and from its choices in
    tuned/*.json: those with most points first, at equal numbers the same workload and dtype.
    """
    groups: dict[tuple[str, ...], dict[Config, Outcome]] = {}
    for record in records:
        if record.operator != operator.name or record.implementation != implementation.name:
            continue
        where = (record.device, record.dtype, record.workload, json.dumps(dict(record.axes), sort_keys=True))
        if record.timing is not None:
            groups.setdefault(where, {})[record.config] = Measured(seconds=record.timing.median_s)
        elif isinstance(record.verdict, Mismatch | Timeout | Broken | Crash):
            groups.setdefault(where, {}).setdefault(record.config, Failure(stage=stage_of(record.verdict)))
    found = [
        (
            -len(outcomes),
            (where[1] != dtype) + (where[2] != workload.name),
            Trace(origin=" ".join(where[:3]), outcomes=tuple(outcomes.items())),
        )
        for where, outcomes in groups.items()
        # one point says which, and the choices say it as well
        if len(outcomes) > 1 and any(isinstance(outcome, Measured) for outcome in outcomes.values())
    ]
    traces = [trace for *_, trace in sorted(found, key=lambda item: item[:2])][:MOST_TRACES]
    return tuple(traces or _choices(operator, implementation))


def _choices(operator: Operator, implementation: Implementation) -> list[Trace]:
    """The winners alone: near them is a good place to begin."""
    traces: list[Trace] = []
    for file in known_files(operator):
        try:
            chosen = entries(file)
        except UsageError:
            continue  # whoever writes the file says so; another device's is no reason to end a search
        configs = {
            Config(tuple(entry["config"].items())) for entry in chosen if entry["implementation"] == implementation.name
        }
        traces += [
            Trace(origin=f"chosen for {file.stem}", outcomes=((config, Measured(seconds=1.0)),))
            for config in sorted(configs, key=str)
        ]
    return traces[:MOST_TRACES]
