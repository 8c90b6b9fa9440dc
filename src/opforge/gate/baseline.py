"""Baselines: sets of records that somebody promoted by name. A lucky run never becomes one by itself.

A baseline is a JSON file, `NAME.json` in the user's data folder or wherever it is told to be, so that a project can
keep it in its repository: it travels to CI with the code it speaks of, and a change to it is seen in review. It holds
whole records, samples and all, and a hash of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from opforge.core.evidence.record import CONFIG, Record, from_json, to_json
from opforge.core.evidence.verdict import Pass
from opforge.core.language.errors import EnvironmentLacks, UsageError
from opforge.core.language.user_folders import data_folder
from opforge.gate.history import SeriesKey

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What later runs are held against.

    records      one per SeriesKey, each a Pass with a timing that nothing speaks against
    thresholds   by str(SeriesKey): the ratio of times that a check allows, where an adaptive one was written
    """

    name: str
    promoted_at: str
    run: str
    records: tuple[Record, ...]
    thresholds: Mapping[str, float] = field(default_factory=dict)

    def by_key(self) -> dict[SeriesKey, Record]:
        """The records by what they are about."""
        return {key_of(record): record for record in self.records}


def key_of(record: Record) -> SeriesKey:
    """What a record is about."""
    return SeriesKey(
        operator=record.operator, implementation=record.implementation, workload=record.workload, dtype=record.dtype
    )


def select_records(records: Iterable[Record]) -> tuple[tuple[Record, ...], tuple[str, ...]]:
    """The records that may be promoted, the newest of each SeriesKey, and for the others why not."""
    chosen: dict[SeriesKey, Record] = {}
    refused: list[str] = []
    for record in sorted(records, key=lambda record: record.created_at):
        if not record.workload:
            continue
        if not isinstance(record.verdict, Pass) or record.timing is None:
            refused.append(f"{key_of(record)}: {type(record.verdict).__name__}, not timed")
        elif record.timing.suspect is not None:
            refused.append(f"{key_of(record)}: suspect: {record.timing.suspect}")
        elif CONFIG in record.environment.facts:
            refused.append(f"{key_of(record)}: timed with {record.config}, which is not its default")
        else:
            chosen[key_of(record)] = record
    return tuple(chosen.values()), tuple(refused)


def baseline_path(name: str) -> Path:
    """The file of a named baseline. Raises UsageError for a name that would leave the folder."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise UsageError(
            f"{name!r} cannot be a baseline's name. Use letters, digits, '.', '_' and '-', beginning with a letter "
            "or digit."
        )
    return data_folder() / "baselines" / f"{name}.json"


def find_baseline(name_or_file: str) -> Path:
    """The baseline's file, by path or by name. Raises UsageError with those there are."""
    given = Path(name_or_file)
    if given.suffix == ".json" or given.is_file():
        if not given.is_file():
            raise UsageError(
                f"{given} does not exist. Make it with: opforge baseline promote NAME --run RUN --file {given}"
            )
        return given
    path = baseline_path(name_or_file)
    if not path.is_file():
        raise UsageError(
            f"No baseline named {name_or_file!r}. Known: {', '.join(baseline_names()) or 'none'}. Make it with: "
            f"opforge baseline promote {name_or_file} --run RUN"
        )
    return path


def baseline_names() -> tuple[str, ...]:
    """The baselines in the user's data folder."""
    return tuple(sorted(path.stem for path in (data_folder() / "baselines").glob("*.json")))


def save_baseline(baseline: Baseline, path: Path) -> Path:
    """Write the baseline, whole or not at all. Raises EnvironmentLacks when the folder cannot be written."""
    body = _body(baseline)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, scratch = tempfile.mkstemp(prefix=".new-", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump({"sha256": _digest(body), **body}, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            Path(scratch).replace(path)
        except BaseException:
            Path(scratch).unlink()
            raise
    except OSError as error:
        raise EnvironmentLacks(
            f"The baseline cannot be written to {path} ({error.strerror}). Name another place with --file."
        ) from error
    return path


def load_baseline(path: Path) -> Baseline:
    """The baseline in a file. Raises UsageError when it is damaged, changed by hand or written by a newer version."""
    remedy = "Promote it again with: opforge baseline promote NAME --run RUN"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no baseline ({error}). {remedy}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UsageError(f"{path} is no baseline of format {FORMAT}. {remedy}")
    digest = data.pop("sha256", None)
    if digest != _digest(data):
        raise UsageError(f"{path} does not match its own hash: it was damaged or edited. {remedy}")
    try:
        records = from_json(data["records"])
        baseline = Baseline(
            name=str(data["name"]),
            promoted_at=str(data["promoted_at"]),
            run=str(data["run"]),
            records=records,
            thresholds=dict(data["thresholds"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} lacks something ({error}). {remedy}") from error
    if not all(isinstance(record, Record) and record.timing is not None for record in baseline.records):
        raise UsageError(f"{path} holds something else than timed records. {remedy}")
    return baseline


def tightened(
    baseline: Baseline,
    histories: Mapping[SeriesKey, Iterable[float]],
    *,
    allowed: float = 1.05,
    kept: int = 100,
    least: float = 1.01,
) -> Baseline:
    """The baseline with adaptive thresholds: (mean + 3 sigma of the last `kept` medians) over the baseline's own
    median.

    Only tighter ones than there are, or than `allowed` where there is none, are taken, none below `least`; a SeriesKey
    with fewer than 10 timings keeps what it has.
    """
    thresholds = dict(baseline.thresholds)
    for key, record in baseline.by_key().items():
        medians = list(histories.get(key, ()))[-kept:]
        if len(medians) < 10 or record.timing is None:
            continue
        mean = sum(medians) / len(medians)
        sigma = (sum((value - mean) ** 2 for value in medians) / (len(medians) - 1)) ** 0.5
        seen = max(least, (mean + 3 * sigma) / record.timing.median_s)
        if seen < thresholds.get(str(key), allowed):
            thresholds[str(key)] = seen
    return replace(baseline, thresholds=thresholds)


def _body(baseline: Baseline) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "name": baseline.name,
        "promoted_at": baseline.promoted_at,
        "run": baseline.run,
        "thresholds": dict(sorted(baseline.thresholds.items())),
        "records": to_json(baseline.records),
    }


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
