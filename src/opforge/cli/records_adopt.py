"""`opforge records adopt`: which records of other sources speak of today's."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from opforge.cli.shared import print_json
from opforge.core.evidence.record import Adoption, Record, to_json
from opforge.core.language import units
from opforge.core.language.errors import UsageError

if TYPE_CHECKING:
    from opforge.registry import Registry
    from opforge.store import Store
    from opforge.workbench.adopt import AdoptionResult


def adopt_records(
    registry: Registry, store: Store, file: str, *, operator: str, device: str, jobs: int, compiling: bool, json: bool
) -> None:
    """Adopt what can be of a file's records, or of the store's, and say what was found of each group of them."""
    from opforge.store import read_file, read_nouns
    from opforge.workbench.adopt import adopt, stale

    if file:
        nouns = list(read_nouns(read_file(Path(file))))
        records, adoptions = (
            [noun for noun in nouns if isinstance(noun, Record)],
            [noun for noun in nouns if isinstance(noun, Adoption)],
        )
    else:
        records, adoptions = (
            store.query(operator=operator or None, device=device or None),
            store.adoptions(operator or None),
        )
    wanted = [
        record
        for record in records
        if (not operator or record.operator == operator) and (not device or record.device == device)
    ]
    if not wanted:
        raise UsageError(
            f"No records{f' of {device}' if device else ''} to look at{f' in {file}' if file else ''}. See which "
            "there are with: opforge records"
        )
    old = stale(registry, wanted, adoptions)
    outcomes: list[AdoptionResult] = []
    with tempfile.TemporaryDirectory(prefix="opforge-adopt-") as scratch:
        for outcome in adopt(
            registry,
            old,
            Path(scratch),
            adoptions=adoptions,
            jobs=jobs,
            compiling=compiling,
            say=lambda words: typer.echo(words, err=True),
        ):
            outcomes.append(outcome)
            if not file and outcome.adoption is not None:
                # kept as it is found: who is interrupted loses nothing
                store.adopt([outcome.adoption])
    found = [outcome.adoption for outcome in outcomes if outcome.adoption is not None]
    if file and found:
        _append(Path(file), found)
    if json:
        print_json(
            {
                "records": len(wanted),
                "stale": len(old),
                "adopted": len(found),
                "outcomes": [{"record": item.record.id, "reason": item.reason} for item in outcomes],
            }
        )
        return
    for line in told(outcomes):
        typer.echo(line)
    typer.echo(
        f"{units.plural(len(wanted), 'record')}, {len(old)} of other sources: {len(found)} adopted, "
        f"{len(old) - len(found)} not"
    )


def told(outcomes: Sequence[AdoptionResult]) -> list[str]:
    """A line for each implementation and reason, what is not carried over last."""
    counts: dict[tuple[bool, str, str], int] = {}
    for outcome in outcomes:
        key = (outcome.adoption is None, f"{outcome.record.operator}/{outcome.record.implementation}", outcome.reason)
        counts[key] = counts.get(key, 0) + 1
    return [
        f"{'not adopted' if lost else 'adopted'} {count:4d}  {name}: {reason}"
        for (lost, name, reason), count in sorted(counts.items())
    ]


def _append(path: Path, adoptions: Sequence[Adoption]) -> None:
    import json

    from opforge.store import append_file

    lines = [json.dumps(to_json(adoption), separators=(",", ":"), sort_keys=True) for adoption in adoptions]
    append_file(path, lines)
