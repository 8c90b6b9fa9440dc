"""`<device>.json`: the choices of an operator, one for each dtype, shape class and kind of call. Tuning writes them,
dispatch reads them, and no other module knows what is in the file.

Choices that ship lie beside the kernels, in `<operator>/tuned`. A user's own lie in the user's data folder
(core.language.user_folders), because an installed package is shared and replaced by the next version. The operators of
a folder of the user's own (`--home`) keep theirs beside the kernels. Readers ask both places, the user's first.

An entry says what was chosen and on what evidence, so that a reader can repeat it: workload, time, time of the default,
how many points were tried, the source's hash, the record.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import site
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opforge.core.definition.implementation import Config
from opforge.core.definition.operator import Operator
from opforge.core.definition.shapes import Axes, shape_class
from opforge.core.evidence.record import Record
from opforge.core.language.errors import UsageError
from opforge.core.language.user_folders import data_folder

PACKAGE = Path(__file__).resolve().parent.parent
TUNED = "tuned"
"""The folder of choices, in an operator's folder and in the user's data folder."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What was chosen for calls of one dtype, shape class and kind. `axes` are those that it was tuned on; None in
    files from before they were kept.
    `source_sha256` and `code_sha256` are the record's: what was chosen is of any source of one of them
    (backends.program_hash.is_of). `record` is the evidence, by its id. `unsure`: no time of the final was steady."""

    implementation: str
    config: Config
    source_sha256: str
    code_sha256: str
    axes: Axes | None
    record: str
    unsure: bool = False


def shipped_path(operator: Operator, device: str) -> Path:
    """Where the choices that come with an operator are kept, for a device by its name ("nvidia-h200")."""
    assert operator.folder is not None
    return operator.folder / TUNED / f"{device}.json"


def users_path(operator: Operator, device: str) -> Path:
    """Where the user's own choices are kept. The operators of other packages and folders may have names of ours: the
    place of the folder tells them apart.
    """
    assert operator.folder is not None
    folder = operator.folder.resolve()
    apart = "" if PACKAGE in folder.parents else f"-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]}"
    return data_folder() / TUNED / f"{operator.name}{apart}" / f"{device}.json"


def choices_path(operator: Operator, device: str, *, into_package: bool = False) -> Path:
    """Where a new choice is written: beside the kernel in a folder of the user's own or with `into_package`, else in
    the user's data folder.
    """
    beside = shipped_path(operator, device)
    folder = beside.parent if beside.parent.is_dir() else beside.parent.parent
    own = not _installed(beside) and os.access(folder, os.W_OK)
    return beside if into_package or own else users_path(operator, device)


def choice_files(operator: Operator, device: str) -> tuple[Path, ...]:
    """Where choices are read, the user's first."""
    return users_path(operator, device), shipped_path(operator, device)


def known_files(operator: Operator) -> tuple[Path, ...]:
    """The files of choices that there are, of every device; the user's first."""
    if operator.folder is None:
        return ()
    folders = (path.parent for path in choice_files(operator, ""))
    return tuple(file for folder in folders for file in sorted(folder.glob("*.json")))


def _installed(path: Path) -> bool:
    """Whether a path lies in this package, or where Python keeps installed ones."""
    places = (PACKAGE, *map(Path, site.getsitepackages()), Path(site.getusersitepackages()))
    return any(place.resolve() in path.resolve().parents for place in places)


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
    folder = next(parent for parent in path.parents if parent.is_dir())
    if written and not os.access(folder, os.W_OK):
        raise _not_written(path, f"{folder} is not writable")


def _not_written(path: Path, reason: str | None) -> UsageError:
    return UsageError(
        f"{path} cannot be written ({reason}). Name a data folder that you may write: XDG_DATA_HOME=FOLDER opforge "
        "tune …, or say --dry-run."
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
                unsure=bool(entry.get("unsure")),
            )
    return None


def chosen(operator: Operator, device: str, dtype: str, axes: Axes, kind: Mapping[str, Any]) -> Chosen | None:
    """`choice_for` over all places, the user's first."""
    found = (choice_for(path, dtype, axes, kind) for path in choice_files(operator, device))
    return next((choice for choice in found if choice is not None), None)


def choices_together(operator: Operator) -> dict[str, dict[str, Any]]:
    """What is known for each device, by its file's name and in the file's form; a user's choice in the place of one
    that ships. Raises UsageError for a file that cannot be read.
    """
    together: dict[str, dict[str, Any]] = {}
    for file in known_files(operator):
        known = together.setdefault(file.name, {"device": file.stem, "choices": []})["choices"]
        taken = [_place(entry) for entry in known]
        known += [entry for entry in entries(file) if _place(entry) not in taken]
        known.sort(key=_place)
    return together


def keep(
    path: Path,
    record: Record,
    *,
    over_default: float | None,
    trials: int,
    failed: int,
    factors: str = "",
    kind: Mapping[str, Any] | None = None,
    unsure: bool = False,
) -> None:
    """Write a choice, in place of the one for the same dtype, shape class and kind of call. The file is replaced whole.

    factors   the format in which factors were multiplied, where that is not the record's dtype: it stands in the
              dtype's place
    kind      of the call that was tuned (Operator.kind_of_call)
    unsure    no time of the final was steady

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
        **({"unsure": True} if unsure else {}),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path.parent):
            _put(path, record.device, [*_others(path, entry), entry])
    except OSError as error:
        raise _not_written(path, error.strerror) from error


def give_way(operator: Operator, record: Record, path: Path, *, factors: str, kind: Mapping[str, Any]) -> None:
    """Take the user's own choice for a record's call away after another was written to `path`, which it would hide."""
    mine = users_path(operator, path.stem)
    if mine == path or not mine.is_file():
        return
    entry = {"dtype": factors, "shape_class": dict(shape_class(record.axes)), "kind": dict(kind)}
    with _alone(mine.parent):
        _put(mine, record.device, _others(mine, entry))


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


def _others(path: Path, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [item for item in entries(path) if _place(item) != _place(entry)]


def _put(path: Path, device: str, choices: list[dict[str, Any]]) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as scratch:
        try:
            json.dump({"device": device, "choices": sorted(choices, key=_place)}, scratch, indent=1)
            scratch.write("\n")
            scratch.close()
            with contextlib.suppress(OSError):  # a file system without modes keeps its own
                Path(scratch.name).chmod(0o644)
            Path(scratch.name).replace(path)
        except BaseException:
            Path(scratch.name).unlink(missing_ok=True)
            raise
