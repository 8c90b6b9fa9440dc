"""Replay: a search over a space that was measured whole, without a device. What it finds after how many evaluations.

A space is a table: one row for each legal point, `name@device.csv` or `.csv.gz`, its parameters first, then `status`
("ok", or why there is no time), then times in ms. Or it is T4, `name@device.json` or `.json.gz`, as scripts/spaces.py
writes it.
"""

from __future__ import annotations

import csv
import gzip
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from opforge.core.definition.implementation import Config
from opforge.core.language.errors import UsageError
from opforge.tuning.exchange import t4_outcome
from opforge.tuning.strategies import Failure, Legal, Measured, Outcome, Strategy, Trace

TIMES = ("time_median_ms", "time_ms", "time_mean_ms")
"""The column that counts: the first of these that a table has."""
ENDINGS = (".csv", ".csv.gz", ".json", ".json.gz")


@dataclass(frozen=True, kw_only=True)
class MeasuredSpace:
    """seconds: float array [points], inf where the point failed; best_s: the least of them."""

    kernel: str
    device: str
    legal: Legal
    seconds: np.ndarray
    best_s: float

    @property
    def name(self) -> str:
        """kernel@device"""
        return f"{self.kernel}@{self.device}"

    def outcome(self, config: Config) -> Outcome:
        """What measuring a point gives."""
        seconds = float(self.seconds[self.legal.place[frozenset(config.values)]])
        return Measured(seconds=seconds) if np.isfinite(seconds) else Failure(stage="launch")


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """fractions: the optimum's time over that of the best point until then, after each evaluation (0: none passed).
    asked: the points in order. own_s: the strategy's own processor time for each
    evaluation."""

    fractions: np.ndarray
    asked: tuple[Config, ...]
    own_s: float

    def evaluations_to(self, fraction: float) -> float:
        """How many evaluations it took; inf where they were not enough."""
        reached = np.flatnonzero(self.fractions >= fraction)
        return float(reached[0] + 1) if reached.size else float("inf")


def measured_space(file: Path) -> MeasuredSpace:
    """Read a table. Raises UsageError where it is none."""
    content = file.read_bytes()
    text = (gzip.decompress(content) if file.suffix == ".gz" else content).decode("utf-8")
    if file.name.removesuffix(".gz").endswith(".json"):
        return _of_t4(file, text)
    rows = list(csv.DictReader(text.splitlines()))
    kernel, _, device = file.name.removesuffix(".gz").removesuffix(".csv").partition("@")
    column = next((name for name in TIMES if rows and name in rows[0]), None)
    if column is None or "status" not in rows[0]:
        raise UsageError(f"{file} holds no measured space: it needs the columns status and {TIMES[0]}, and rows.")
    names = list(rows[0])[: list(rows[0]).index("status")]
    configs = [Config(tuple((name, _value(row[name])) for name in names)) for row in rows]
    seconds = np.array([float(row[column]) / 1e3 if row["status"] == "ok" and row[column] else np.inf for row in rows])
    return _space(file, kernel, device, configs, seconds)


def _of_t4(file: Path, text: str) -> MeasuredSpace:
    try:
        said = json.loads(text)
        complete = said.get("metadata", {}).get("complete", True)
        told = [(Config(tuple(item["configuration"].items())), t4_outcome(item)) for item in said["results"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{file} holds no measured space: it is no T4 ({type(error).__name__}: {error}).") from error
    if not complete:
        raise UsageError(f"{file} was not measured whole. Go on with the command that measured it, or move it away.")
    kernel, _, device = file.name.removesuffix(".gz").removesuffix(".json").partition("@")
    seconds = np.array([outcome.seconds if isinstance(outcome, Measured) else np.inf for _, outcome in told])
    return _space(file, kernel, device, [config for config, _ in told], seconds)


def _space(file: Path, kernel: str, device: str, configs: list[Config], seconds: np.ndarray) -> MeasuredSpace:
    if not np.isfinite(seconds).any():
        raise UsageError(f"{file}: no point passed, so there is no optimum to find.")
    return MeasuredSpace(
        kernel=kernel, device=device, legal=Legal(configs), seconds=seconds, best_s=float(seconds.min())
    )


def measured_spaces(folder: Path) -> list[MeasuredSpace]:
    """All tables of a folder, by name. Raises UsageError where there is none."""
    files = sorted(file for file in folder.glob("*@*") if file.name.endswith(ENDINGS))
    if not files:
        raise UsageError(f"{folder} holds no measured space (NAME@DEVICE{', '.join(ENDINGS)}).")
    return [measured_space(file) for file in files]


def replay(space: MeasuredSpace, strategy: Strategy, evaluations: int, together: int = 1) -> Replayed:
    """Ask and tell until `evaluations` are used up. together: how many points are asked for at once, as compilers that
    work in parallel need them.
    """
    asked: list[Config] = []
    fractions: list[float] = []
    best, own = float("inf"), 0.0
    while len(asked) < evaluations:
        began = time.thread_time()
        configs = strategy.ask(min(together, evaluations - len(asked)))
        own += time.thread_time() - began
        if not configs:
            break
        for config in configs:
            outcome = space.outcome(config)
            began = time.thread_time()
            strategy.tell(config, outcome)
            own += time.thread_time() - began
            best = min(best, outcome.seconds if isinstance(outcome, Measured) else float("inf"))
            asked.append(config)
            fractions.append(space.best_s / best)
    fractions += fractions[-1:] * (evaluations - len(fractions))
    return Replayed(fractions=np.array(fractions), asked=tuple(asked), own_s=own / max(1, len(asked)))


def trace_of(space: MeasuredSpace, asked: Sequence[Config]) -> Trace:
    """What a search on this space leaves for others."""
    return Trace(origin=space.name, outcomes=[(config, space.outcome(config)) for config in asked])


def _value(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text
