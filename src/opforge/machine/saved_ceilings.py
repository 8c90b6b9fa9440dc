"""Ceilings that were measured on this machine, kept in the user's cache folder, one file per hardware."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from opforge.core.definition.device import Ceiling, DeviceSpec
from opforge.core.evidence.record import from_json, to_json
from opforge.core.language.errors import EnvironmentLacks, UsageError
from opforge.core.language.user_folders import cache_folder
from opforge.machine.host_hardware import quota

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def hardware(spec: DeviceSpec) -> str:
    """Twelve hex digits for the hardware that `spec` describes: chip, units, memory, cache and, on a CPU, what limits
    threads.

    Versions of libraries are left out on purpose: a ceiling belongs to the machine, and an update must not lose it.
    """
    # memory in GiB: what the kernel reports of one machine differs by some pages from start to start
    parts = [spec.name, spec.kind, spec.units, round(spec.memory_bytes / 2**30), spec.cache_bytes]
    if spec.kind == "cpu":
        parts += [os.environ.get(name, "") for name in THREADS] + [str(quota())]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def ceilings_file(spec: DeviceSpec) -> Path:
    """Where the ceilings of `spec` are kept."""
    return cache_folder() / "machine" / f"{hardware(spec)}.json"


def load_ceilings(spec: DeviceSpec) -> tuple[Ceiling, ...]:
    """The ceilings kept for `spec`; () when none were measured. A damaged file is set aside as `*.damaged` and counts
    as none.
    """
    file = ceilings_file(spec)
    try:
        kept = from_json(json.loads(file.read_text(encoding="utf-8")))
        ceilings = kept["ceilings"]
        if not all(isinstance(ceiling, Ceiling) and ceiling.value > 0 for ceiling in ceilings):
            raise UsageError("not all of it is a Ceiling")
    except OSError:
        return ()
    except (ValueError, KeyError, TypeError, UsageError, RecursionError):
        with contextlib.suppress(OSError):  # a folder that can't be written: the file is left, and read as none again
            file.replace(file.with_suffix(".json.damaged"))
        return ()
    return tuple(ceilings)


def save_ceilings(spec: DeviceSpec, ceilings: Sequence[Ceiling]) -> Path:
    """Keep `ceilings` for `spec`, whole or not at all; those of a former measurement are replaced. Returns the file.

    Raises EnvironmentLacks when the cache folder cannot be written.
    """
    file = ceilings_file(spec)
    body = {"device": spec.name, "hardware": hardware(spec), "ceilings": to_json(tuple(ceilings))}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, scratch = tempfile.mkstemp(prefix="new-", dir=file.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                json.dump(body, stream, indent=1)
                stream.flush()
                os.fsync(stream.fileno())
            Path(scratch).replace(file)
        except BaseException:
            Path(scratch).unlink(missing_ok=True)
            raise
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise EnvironmentLacks(
            f"The ceilings cannot be kept in {file.parent} ({error.strerror}). Point OPFORGE_CACHE at a folder of "
            "yours."
        ) from error
    return file
