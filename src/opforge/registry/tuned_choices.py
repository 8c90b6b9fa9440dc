"""`<operator>/tuned/<device>.json`: the choices beside the kernels, one for each dtype, shape class and kind of call.
Tuning writes them, dispatch reads them, and nobody else knows what is in the file.

An entry says what was chosen and on what evidence, so that a reader can repeat it: workload, time, time of the default,
how many points were tried, the source's hash, the record.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opforge.core.errors import UsageError
from opforge.core.implementation import Config
from opforge.core.operator import Operator
from opforge.core.record import Record
from opforge.core.shapes import Axes, shape_class


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What was chosen for calls of one dtype, shape class and kind. `axes` are those that it was tuned on; None in
    files from before they were kept.
    `source_sha256` and `code_sha256` are the record's: what was chosen is of any source of one of them
    (backends.program_hash.is_of). `record` is the evidence, by its id."""

    implementation: str
    config: Config
    source_sha256: str
    code_sha256: str
    axes: Axes | None
    record: str


def choices_path(operator: Operator, device: str) -> Path:
    """Where an operator's choices for a device (by its name, "nvidia-h200") are kept."""
    assert operator.folder is not None
    return operator.folder / "tuned" / f"{device}.json"


def entries(path: Path) -> list[dict[str, Any]]:
    """The entries of a file; none where there is no file. Raises UsageError for one that cannot be read."""
    if not path.is_file():
        return []
    try:
        choices: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["choices"]
        for entry in choices:
            _place(entry), entry["implementation"], entry["config"].items(), entry.get("axes", {}).items()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} is not a file of tuned choices ({type(error).__name__}: {error}). Remove it and tune again."
        ) from error
    return choices


def _place(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """What an entry is for: there is one of each."""
    return entry["dtype"], sorted(entry["shape_class"].items()), sorted(entry.get("kind", {}).items())


def ensure_usable(path: Path, *, written: bool) -> None:
    """Raises UsageError where the file cannot be read, or is to be written and cannot be: better before a search than
    after it.
    """
    entries(path)
    folder = path.parent if path.parent.is_dir() else path.parent.parent
    if written and not os.access(folder, os.W_OK):
        raise _not_written(path, f"{folder} is not writable")


def _not_written(path: Path, reason: str | None) -> UsageError:
    return UsageError(
        f"{path} cannot be written ({reason}). Tune a copy of the operator in a folder of yours: opforge --home "
        "FOLDER tune …, or say --dry-run."
    )


def choice_for(path: Path, dtype: str, axes: Axes, kind: Mapping[str, Any]) -> Chosen | None:
    """What was chosen for this dtype (the format in which factors are multiplied), shape class and kind of call
    (Operator.kind_of_call); None where
    nothing was. Raises UsageError for a file that cannot be read."""
    wanted = dict(shape_class(axes))
    for entry in entries(path):
        if (entry["dtype"], entry["shape_class"], entry.get("kind", {})) == (dtype, wanted, kind):
            tuned_on = (
                {name: tuple(value) if isinstance(value, list) else value for name, value in entry["axes"].items()}
                if "axes" in entry
                else None
            )
            return Chosen(
                implementation=entry["implementation"],
                config=Config(tuple(entry["config"].items())),
                source_sha256=entry.get("source_sha256", ""),
                code_sha256=entry.get("code_sha256", ""),
                axes=tuned_on,
                record=entry.get("record", ""),
            )
    return None


def keep(
    path: Path,
    record: Record,
    *,
    over_default: float | None,
    trials: int,
    failed: int,
    factors: str = "",
    kind: Mapping[str, Any] | None = None,
) -> None:
    """Write a choice, in place of the one for the same dtype, shape class and kind of call. The file is replaced whole.

    factors   the format in which factors were multiplied, where that is not the record's dtype: it stands in the
              dtype's place
    kind      of the call that was tuned (Operator.kind_of_call)

    Raises UsageError where the operator's folder cannot be written.
    """
    assert record.timing is not None
    dtype = factors or record.dtype
    entry = {
        "dtype": dtype,
        "shape_class": dict(shape_class(record.axes)),
        "kind": dict(kind or {}),
        "implementation": record.implementation,
        "config": record.config.as_dict(),
        "workload": record.workload,
        "axes": dict(record.axes),
        "median_s": record.timing.median_s,
        "over_default": over_default,
        "trials": trials,
        "failed": failed,
        "source_sha256": record.source_sha256,
        "code_sha256": record.code_sha256,
        "record": record.id,
        "tuned_at": record.created_at,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path.parent):
            _put(path, record.device, entry)
    except OSError as error:
        raise _not_written(path, error.strerror) from error


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder while its file is read and replaced: two searches may end at once, one on each GPU. Given back by
    the system if this process dies.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _put(path: Path, device: str, entry: dict[str, Any]) -> None:
    others = [item for item in entries(path) if _place(item) != _place(entry)]
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as scratch:
        try:
            json.dump({"device": device, "choices": sorted([*others, entry], key=_place)}, scratch, indent=1)
            scratch.write("\n")
            scratch.close()
            with contextlib.suppress(OSError):  # a file system without modes keeps its own
                Path(scratch.name).chmod(0o644)
            Path(scratch.name).replace(path)
        except BaseException:
            Path(scratch.name).unlink(missing_ok=True)
            raise
