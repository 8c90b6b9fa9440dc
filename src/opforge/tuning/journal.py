"""The journal of a search: what became of each point, on disk before anything else is done. A search that is killed
goes on where it was.

A search is known by what its times depend on: kernel, source, space, workload, dtype, the device's full name and the
toolchain. Each line is one JSON object, written whole and synced: `begin` before a point is tried, `end` after it, with
the record, or `back` where it was not tried in the end. A line that was cut short by the end of the machine is the last
one, and is passed over. A point that was begun and never ended is tried last: it may be what ends the process. After
three times it counts as failed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opforge.backends.shared_code import source_sha256
from opforge.core.definition.implementation import Config, Implementation
from opforge.core.definition.operator import Operator, Workload
from opforge.core.evidence.record import Environment, Record, from_json, to_json
from opforge.core.language.errors import UsageError
from opforge.core.language.user_folders import data_folder
from opforge.tuning.strategies import Failure, Measured, Outcome

FATAL = 3
"""So often a point is begun without an end before it is given up: a reset or a signal may hit anybody, and seldom the
same point each time, because it is tried last.
"""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What became of one point: as the search counts it (`outcome`: "timed", "slower", …), as it taught the strategy,
    its record (None: it never came to one), and the SHA-256 of its code ("": not known)."""

    config: Config
    outcome: str
    taught: Outcome
    record: Record | None
    code_sha256: str


class Journal:
    """One search's.

    entries    what earlier runs of it left, in their order
    unended    points that were begun and never ended
    """

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.entries: list[Entry] = []
        self.unended: list[Config] = []
        self._handle: int | None = None
        if file is None:
            return
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            # another search of the same is under way, on another device of this model: it has the journal
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            return
        self.entries = self._read(file)

    def begin(self, config: Config) -> None:
        """`config` is about to be tried."""
        self._write({"begin": list(config.values)})

    def take_back(self, config: Config) -> None:
        """It was not tried in the end, through no fault of its own."""
        self._write({"back": list(config.values)})

    def end(self, entry: Entry) -> None:
        """What became of it."""
        taught = entry.taught
        self._write(
            {
                "end": list(entry.config.values),
                "outcome": entry.outcome,
                "seconds": taught.seconds if isinstance(taught, Measured) else None,
                "stage": taught.stage if isinstance(taught, Failure) else "",
                "record": to_json(entry.record),
                "code": entry.code_sha256,
            }
        )

    def finish(self) -> None:
        """The search is over: its points are on record, and the next one starts afresh."""
        if self._handle is not None and self.file is not None:
            self.file.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Leave it for the next run."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._handle is not None:
            os.write(self._handle, json.dumps(line).encode() + b"\n")
            os.fsync(self._handle)

    def _read(self, file: Path) -> list[Entry]:
        entries: dict[Config, Entry] = {}
        begun: Counter[Config] = Counter()
        whole = 0
        content = file.read_bytes()
        for line in content.splitlines(keepends=True):
            try:
                said = json.loads(line) if line.endswith(b"\n") else None
                if said is None:
                    break
                if "begin" in said:
                    begun[_config(said["begin"])] += 1
                elif "back" in said:
                    begun[_config(said["back"])] -= 1
                else:
                    config = _config(said["end"])
                    entries[config] = _entry(config, said)
            except (ValueError, KeyError, TypeError, UsageError):
                # of another version, or damaged: what stands before it counts
                break
            whole += len(line)
        if whole < len(content) and self._handle is not None:
            os.ftruncate(self._handle, whole)
        for config, times in begun.items():
            if config in entries or times <= 0:
                continue
            if times < FATAL:
                self.unended.append(config)
                continue
            reason = f"the search ended {times} times while this point was tried"
            taught = Failure(stage="launch", reason=reason)
            entries[config] = Entry(config=config, outcome="failed", taught=taught, record=None, code_sha256="")
        return list(entries.values())


def journal_file(
    operator: Operator,
    implementation: Implementation,
    workload: Workload,
    dtype: str,
    device: str,
    environment: Environment,
    weights: Mapping[str, float],
) -> Path:
    """Where the journal of a search lies. device: the name of its descriptor; the environment has the full one."""
    parts = {
        "operator": operator.name,
        "implementation": implementation.name,
        "source": source_sha256(implementation.source),
        "space": to_json(dict(implementation.space)),
        "limits": dict(implementation.limits),
        "axes": to_json(dict(workload.axes)),
        "scalars": to_json(dict(workload.scalars)),
        "layout": workload.layout,
        "dtype": dtype,
        "device": device,
        "environment": environment.fingerprint,
    }
    if weights:
        # what was taught by other weights is of another search
        parts["weights"] = dict(weights)
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]
    return data_folder() / "tuning" / f"{key}.jsonl"


def _config(values: list[list[Any]]) -> Config:
    return Config(tuple((str(name), value) for name, value in values))


def _entry(config: Config, said: Mapping[str, Any]) -> Entry:
    seconds = said["seconds"]
    taught: Outcome = Failure(stage=said["stage"]) if seconds is None else Measured(seconds=float(seconds))
    record = from_json(said["record"])
    if record is not None and not isinstance(record, Record):
        raise UsageError("This line holds no Record.")
    return Entry(
        config=config, outcome=str(said["outcome"]), taught=taught, record=record, code_sha256=str(said["code"])
    )
